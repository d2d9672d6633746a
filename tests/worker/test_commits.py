"""What a commit's metadata says and how it is read back, whoever wrote it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.commits import commit_metadata, read_progress
from worker.offsets import MAX_OWNERS, Progress

BROKERS_LIMIT = 4096  # offset.metadata.max.bytes


@given(st.integers(0, 2**62), st.sets(st.integers(1, 10**6), max_size=MAX_OWNERS))
def test_round_trip(offset: int, ahead: set[int]) -> None:
    progress = Progress(offset, tuple(sorted((offset + each for each in ahead), reverse=True)))
    metadata = commit_metadata(progress)
    assert read_progress(offset, metadata) == progress
    assert len(metadata) < BROKERS_LIMIT


@pytest.mark.parametrize("metadata", [None, "", "taken=", "taken=x", "other", "taken=5,-1", "taken=²"])
def test_what_others_wrote_says_nothing(metadata: str | None) -> None:
    assert read_progress(3, metadata) == Progress(3)


def test_what_is_behind_the_offset_is_past() -> None:
    assert read_progress(5, "taken=9,5,2") == Progress(5, (9,))
