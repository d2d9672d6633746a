"""The closed loop over a pool that only notes its batches: who is served when, and what is counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.packed import BatchBounds, PackedBatch
from engine.prefixes import SHARE_ALL, Prefixes
from tools.bench.closed_loop import Batch, run_closed_loop, summarise

BOUNDS = BatchBounds(samples=5, tokens=100, tokens_per_sample=50)


class NotingPool:
    """One lane; `batches` are those it was given."""

    num_lanes = 1

    def __init__(self, error: Exception | None = None) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.batches: list[PackedBatch] = []
        self._error = error

    def run(self, packed: PackedBatch, head: Any) -> tuple[()]:
        if self._error is not None:
            raise self._error
        self.batches.append(packed)
        return ()


def loop(pool: NotingPool, requests: list[list[tuple[int, ...]]], in_flight: int, **how: Any) -> Any:
    return run_closed_loop(
        pool, lambda hidden: (hidden,), requests, in_flight=in_flight, seconds=0.05, bounds=BOUNDS, **how,
    )  # type: ignore[arg-type]  # fmt: skip


def test_batches_stay_within_the_bounds_and_requests_in_order() -> None:
    requests = [[(number,) * 20, (number,) * 20] for number in range(7)]
    pool = NotingPool()
    load = loop(pool, requests, 6)
    assert all(batch.num_samples in (2, 4) for batch in pool.batches)  # three would have six samples
    assert pool.batches[0].num_samples == 4
    served = [number for batch in pool.batches for number in batch.input_ids[::40].tolist()]
    assert served == [index % 7 for index in range(len(served))]
    assert 1 < load.batch_requests <= 2
    assert (load.in_flight, load.saved_share) == (6, 0)
    tokens = NotingPool()
    loop(tokens, [[(1,) * 45]], 5)
    assert {batch.num_tokens for batch in tokens.batches} <= {45, 90}


def test_a_batch_takes_what_the_worker_would_take() -> None:
    """By tokens that are computed: two of these requests have 164 and compute 84, within 100."""
    requests = [[(1,) * 40 + (2,), (1,) * 40 + (3,)]]
    shared, whole = NotingPool(), NotingPool()
    load = loop(shared, requests, 2, prefixes=Prefixes(None, SHARE_ALL))
    loop(whole, requests, 2)
    assert {batch.num_samples for batch in shared.batches} == {4}
    assert {batch.num_samples for batch in whole.batches} == {2}
    assert load.batch_requests == 2
    full = NotingPool()  # no room for prefixes beside the samples: a prefix takes the place of one
    loop(full, requests, 2, prefixes=Prefixes(None, SHARE_ALL, most_segments=BOUNDS.samples))
    assert {batch.num_samples for batch in full.batches} == {2}


def test_never_more_requests_than_are_in_flight() -> None:
    pool = NotingPool()
    load = loop(pool, [[(1, 2, 3), (1, 2, 4)]], 1, prefixes=Prefixes(None, SHARE_ALL))
    assert {batch.num_samples for batch in pool.batches} == {2}
    assert load.batch_requests == 1
    assert load.saved_share == pytest.approx(2 / 6)


def test_an_error_ends_the_loop() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        loop(NotingPool(RuntimeError("out of memory")), [[(1,)]], 2)


def test_what_is_counted() -> None:
    batches = [
        Batch(10.0, [9.0], tokens=10, saved=90),  # warm-up
        Batch(12.0, [11.9, 11.8], tokens=10, saved=10),
        Batch(11.0, [10.9], tokens=10, saved=0),
        Batch(13.0, [12.9, 12.8, 12.7], tokens=20, saved=0),
    ]
    load = summarise(batches, 4, warm=10.5)
    assert load.requests_per_s == pytest.approx(5 / 2)
    assert load.mean_ms == pytest.approx((100 + 100 + 200 + 100 + 200 + 300) / 6)
    assert load.p99_ms == pytest.approx(300)
    assert load.batch_requests == 2
    assert load.saved_share == pytest.approx(10 / 50)
    slow = summarise(batches[:1], 4, warm=10.5)
    assert (slow.requests_per_s, slow.mean_ms) == (1, 1000)
