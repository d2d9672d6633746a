"""Samples as the wire gives them, a store without artifacts, a pipeline of word_nodes over it, and a place
for a user's own modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.pipeline import ArtifactStore, Pipeline
from word_nodes import ONE, Total, config


@dataclass(frozen=True)
class TextSample:
    """The wire's Sample as the engine sees it."""

    text: str | None = None
    fields: dict[str, object] | None = None
    token_ids: Sequence[int] | None = field(default=None)


@pytest.fixture
def sample() -> type[TextSample]:
    return TextSample


@pytest.fixture
def no_artifacts() -> ArtifactStore:
    return ArtifactStore({})


@pytest.fixture
def fresh_records() -> None:
    """What word_nodes note of earlier tests is forgotten."""
    Total.launches.clear()
    Total.barriers.clear()


@pytest.fixture
def pipeline(no_artifacts: ArtifactStore) -> Iterator[Pipeline]:
    with Pipeline.open(config(**ONE), no_artifacts) as opened:
        yield opened


@pytest.fixture
def user_modules(tmp_path: Path) -> Iterator[Path]:
    """A folder on sys.path; modules imported from it are forgotten afterwards."""
    folder = tmp_path / "user_modules"
    folder.mkdir()
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in set(sys.modules) - known:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and Path(origin).is_relative_to(folder):
            del sys.modules[name]
