"""Sizes of a search's graphs: tiles are filled, and no step between two sizes is large."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eager_beams import BOUNDS, SIZES, WIDTH
from engine.runtime.beam_buckets import (
    MOST_GRAPHS,
    SearchSizes,
    make_beam_buckets,
    prompt_sizes,
    width_sizes,
)
from tools.bench.beam_work import MIXES, draw_prompts


def test_hundred_beams_fill_whole_tiles() -> None:
    sizes = prompt_sizes(100, 32)
    assert {1, 2, 3, 4, 5, 10, 13, 15, 20, 23, 28, 32} <= set(sizes)
    assert sizes == tuple(sorted(set(sizes)))


@pytest.mark.parametrize(("width", "most"), [(1, 64), (7, 16), (100, 1), (400, 8), (512, 32)])
def test_steps_are_small(width: int, most: int) -> None:
    sizes = prompt_sizes(width, most)
    assert (sizes[0], sizes[-1]) == (1, most)
    assert all(after <= max(size + 1, 1.16 * size) for size, after in pairwise(sizes))


@pytest.mark.parametrize(
    "sizes",
    [
        SearchSizes(100, 32, 256, 32 * 256, 4),
        SearchSizes(100, 32, 2048, 32 * 2048, 4),
        SearchSizes(400, 8, 256, 8 * 256, 4),
        SearchSizes(512, 64, 2048, 64 * 2048, 8),
        SearchSizes(10, 256, 2048, 256 * 2048),
    ],
)
def test_graphs_are_not_too_many(sizes: SearchSizes) -> None:
    assert 100 < len(make_beam_buckets(sizes).all) <= MOST_GRAPHS


@pytest.mark.parametrize(("mix", "of_prompts", "of_all"), [("short", 0.12, 0.016), ("long", 0.08, 0.03)])
def test_little_of_a_batch_is_padding(mix: str, of_prompts: float, of_all: float) -> None:
    """Whole tiles of requests, prompts as the benchmark draws them. Steps of 1.3 have 17% of the prompts."""
    lengths, most = list(map(len, draw_prompts(mix, 1000))), MIXES[mix][1]
    buckets = make_beam_buckets(SearchSizes(100, 32, most, 32 * most, 4))
    for count in (10, 15, 20, 28):
        real = padded = rows = 0
        for first in range(0, 240, count):
            tokens = sum(lengths[first : first + count])
            bucket = buckets.choose(count, tokens, 100)
            assert bucket is not None
            assert bucket.prompts == count
            real, padded, rows = real + tokens, padded + bucket.tokens - tokens, rows + 400 * count
        assert padded / real < of_prompts
        assert padded / (real + rows) < of_all


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


def test_bounds_are_those_of_the_batch() -> None:
    """Every batch that the bounds allow has a bucket, in which each missing prompt has room for its token."""
    buckets = make_beam_buckets(SIZES)
    for prompts in range(1, SIZES.prompts + 1):
        for tokens in range(prompts, min(BOUNDS.tokens, prompts * BOUNDS.tokens_per_sample) + 1):
            bucket = buckets.choose(prompts, tokens, WIDTH)
            assert bucket is not None
            assert bucket.tokens >= tokens + bucket.segments - prompts
    assert buckets.choose(SIZES.prompts + 1, 60, WIDTH) is None
