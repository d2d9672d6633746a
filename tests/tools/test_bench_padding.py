"""What buckets cost on the benchmark's mixes: padding stays under 6% however many requests share a batch."""

from __future__ import annotations

import pytest

from engine.packed import BatchBounds
from engine.prefixes import ConstantPrefix, Prefixes, Rules
from engine.runtime.buckets import make_buckets
from engine.runtime.sharing import small_sizes
from tools.bench.mixes import MIXES, Mix, draw_mixes
from tools.bench.shape_setup import BOUNDS

WIDE = BatchBounds(samples=512, tokens=40_960, tokens_per_sample=512)  # holds 16 requests of every mix


@pytest.fixture(scope="module")
def mixes() -> dict[str, Mix]:
    return draw_mixes(1_000)


@pytest.mark.parametrize("bounds", [BOUNDS, WIDE], ids=["benchmark", "wide"])
@pytest.mark.parametrize("shares", [False, True], ids=["whole", "prefixes"])
@pytest.mark.parametrize("name", MIXES)
def test_padding_of_one_to_sixteen_requests(
    mixes: dict[str, Mix], name: str, shares: bool, bounds: BatchBounds
) -> None:
    """Every request of the mix begins a batch of so many; those that no batch holds are left out."""
    buckets, mix = make_buckets(bounds), mixes[name]
    constant = ConstantPrefix(mix.constant, None) if mix.constant else None  # type: ignore[arg-type]
    packing = Prefixes(constant, Rules()) if shares else Prefixes()
    sizes = [packing.count(request) for request in mix.requests]
    held = 0
    for in_flight in range(1, 17):
        tokens = padded = 0
        for first in range(len(sizes)):
            batch = [sizes[(first + i) % len(sizes)] for i in range(in_flight)]
            total, segments = (sum(column) for column in zip(*batch, strict=True))
            if total <= bounds.tokens and segments <= bounds.samples:
                tokens += total
                padded += buckets.choose(total, segments).tokens
        if tokens:
            held = in_flight
            assert padded / tokens - 1 < 0.06, f"{in_flight} requests: {padded / tokens - 1:.1%}"
    assert held == 16 or bounds is BOUNDS


def test_the_number_of_graphs_that_follows() -> None:
    """A lane captures so many at load; half-chip graphs come on top where they are chosen."""
    buckets = make_buckets(BOUNDS)
    assert len(buckets.tokens) == 79
    assert len(buckets.all()) == 236
    assert sum(bucket.tokens in small_sizes(buckets) for bucket in buckets.all()) == 140
