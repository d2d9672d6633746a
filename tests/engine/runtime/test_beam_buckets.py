"""Sizes of a search's graphs: tiles are filled, and no step between two sizes is large."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.beam_buckets import SearchSizes, make_beam_buckets, prompt_sizes, width_sizes


def test_hundred_beams_fill_whole_tiles() -> None:
    sizes = prompt_sizes(100, 32)
    assert {1, 2, 3, 4, 5, 10, 15, 20, 32} <= set(sizes)
    assert sizes == tuple(sorted(set(sizes)))


@pytest.mark.parametrize(("width", "most"), [(1, 64), (7, 16), (100, 1), (400, 8), (512, 32)])
def test_steps_are_small(width: int, most: int) -> None:
    sizes = prompt_sizes(width, most)
    assert (sizes[0], sizes[-1]) == (1, most)
    assert all(after <= max(size + 1, 1.31 * size) for size, after in pairwise(sizes))


def test_a_narrow_request_takes_a_narrow_graph() -> None:
    assert width_sizes(100) == (25, 100)
    assert width_sizes(1) == (2,)
    buckets = make_beam_buckets(SearchSizes(100, 8, 64, 512))
    asked = [buckets.choose(3, 90, width) for width in (2, 25, 26, 100, 101)]
    assert [bucket and bucket.width for bucket in asked] == [25, 25, 100, 100, None]


@given(st.integers(1, 512), st.integers(1, 32), st.integers(1, 2048))
def test_prompts_passes_have_whole_steps_of_rows(width: int, prompts: int, longest: int) -> None:
    buckets = make_beam_buckets(SearchSizes(width, prompts, longest, prompts * longest))
    assert all(bucket.tokens % 16 == 0 for bucket in buckets.all)
