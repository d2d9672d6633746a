"""Half-chip graphs: for which sizes, by what was measured; lanes take them when they work at once."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.packed import BatchBounds, pack
from engine.runtime.buckets import make_buckets
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.sharing import MOST_TOKENS, SharedCost, choose_halves, sizes_to_share, small_sizes
from table_lanes import VOCAB, WEIGHTS, TablePool

BUCKETS = make_buckets(BatchBounds(256, 8192, 512))


def test_sizes_are_chosen_where_two_halves_are_sooner() -> None:
    measured = [
        SharedCost(64, 1.0, 1.0, 0.5),
        SharedCost(1024, 2.0, 2.1, 1.5),
        SharedCost(2048, 4.0, 3.9, 3.95),  # worse than both at once on the whole chip
    ]
    chosen = choose_halves(BUCKETS, measured)
    assert chosen[0] == 64
    assert 1024 in chosen
    assert 2048 not in chosen
    assert chosen == BUCKETS.tokens[: len(chosen)]
    assert choose_halves(BUCKETS, []) == ()


@given(st.lists(st.tuples(*[st.floats(0.1, 10)] * 3), min_size=6, max_size=6))
def test_whatever_was_measured_large_buckets_keep_the_chip(times: list[tuple[float, float, float]]) -> None:
    sizes = sizes_to_share(BUCKETS)
    assert len(sizes) == 6
    assert (sizes[0], sizes[-1]) == (64, MOST_TOKENS)
    measured = [SharedCost(size, *each) for size, each in zip(sizes, times, strict=True)]
    chosen = choose_halves(BUCKETS, measured)
    assert set(chosen) <= set(small_sizes(BUCKETS))
    for each in measured:
        assert (each.tokens in chosen) == (each.gain >= 1.02)


def open_pool(lanes: int = 2) -> GraphLanePool:
    return TablePool(
        Path("none/model.pt2"), WEIGHTS, BatchBounds(16, 4096, 512),
        vocab_size=VOCAB, device=torch.device("cpu"), lanes=lanes,
    )  # fmt: skip


def double(hidden: Tensor) -> tuple[Tensor, ...]:
    return (hidden * 2,)


def test_a_pool_measures_and_keeps_what_gains(acted_chip: Any) -> None:
    """On the acted chip a batch of up to 1,024 tokens takes 10 ms anyhow, of up to 512 also on half of it."""
    pool = open_pool()
    before = pool.load_report
    assert before.shared_tokens == ()
    pool.share()
    report = pool.load_report
    by_tokens = {each.tokens: each for each in report.sharing}
    smallest = by_tokens[64]
    assert (smallest.alone_ms, smallest.together_ms, smallest.halved_ms) == pytest.approx((10, 10, 5))
    assert by_tokens[2048].gain == pytest.approx(1.0, abs=0.1)
    assert report.shared_tokens[0] == 64
    assert 960 in report.shared_tokens
    assert 2048 not in report.shared_tokens
    shared = sum(bucket.tokens in report.shared_tokens for bucket in pool.cost.buckets.all())
    assert report.graphs == before.graphs + 2 * shared
    pool.close()


def test_one_lane_shares_with_nobody(acted_chip: Any) -> None:
    pool = open_pool(lanes=1)
    before = pool.load_report.graphs
    pool.share()
    assert (pool.load_report.graphs, pool.load_report.shared_tokens) == (before, ())
    pool.close()


def test_lanes_that_work_at_once_take_half_each(acted_chip: Any) -> None:
    pool = open_pool()
    pool.share()
    pool.prepare(double)
    small, large = pack([[1, 2], [3]]), pack([[5] * 512] * 5)
    held, release = Event(), Event()

    def wait() -> None:  # the first batch stays on the device until it is released
        if not held.is_set():
            held.set()
            assert release.wait(60)

    for lane in pool._lanes:
        lane.wait = wait  # type: ignore[method-assign]
    first = pool.executor.submit(pool.run, small, double)
    assert held.wait(60)
    assert acted_chip.limits[-1] == 0  # it came alone
    for batch, limit in ((small, 66), (large, 0)):  # a large bucket has no graph for half of the chip
        (scores,) = pool.executor.submit(pool.run, batch, double).result(60)
        assert acted_chip.limits[-1] == limit
        assert scores[0].tolist() == [2.0 * int(batch.input_ids[batch.cu_seqlens[1] - 1])] * 4
    release.set()
    assert first.result(60)[0].tolist() == [[4.0] * 4, [6.0] * 4]
    pool.executor.submit(pool.run, small, double).result(60)
    assert acted_chip.limits[-1] == 0  # alone again
    assert pool.fallbacks == 0
    pool.close()
