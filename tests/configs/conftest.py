"""Samples as the wire gives them, without the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class PlainSample:
    text: str | None = None
    fields: Mapping[str, object] | None = None
    token_ids: Sequence[int] | None = None


@pytest.fixture
def sample() -> type[PlainSample]:
    return PlainSample
