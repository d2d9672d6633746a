"""Closed loop on the engine alone: N requests in flight, each a new one when its answer is there.

Batches are formed by the worker's own queue, of what requests take as its prefill nodes count it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from threading import Condition

from torch import Tensor

from engine.demand import Demand
from engine.packed import BatchBounds
from engine.prefixes import Ids, Prefixes
from engine.runtime.lanes import LanePool
from worker.batching import RequestQueue

Request = Sequence[Ids]
Head = Callable[[Tensor], tuple[Tensor, ...]]
WARM_UP = 0.1  # of the time, not counted


@dataclass(frozen=True)
class Load:
    """Requests per second, and latency from handing a request over to having its answer, milliseconds.

    batch_requests: of a batch, on average. saved_share: of all tokens, those that no one computed.
    """

    in_flight: int
    requests_per_s: float
    mean_ms: float
    p99_ms: float
    batch_requests: float
    saved_share: float


@dataclass(frozen=True)
class Batch:
    """When it was answered, and since when each of its requests had waited."""

    answered: float
    waited_since: Sequence[float]
    tokens: int
    saved: int


def run_closed_loop(
    pool: LanePool,
    head: Head,
    requests: Sequence[Request],
    *,
    in_flight: int,
    seconds: float,
    bounds: BatchBounds,
    prefixes: Prefixes | None = None,
) -> Load:
    """A batch takes what waits, up to the bounds, as soon as a lane is free. `prefixes`: how it is packed."""
    packing, waiting, numbers = prefixes or Prefixes(), _Waiting(bounds), count()
    demands = [packing.demand(request, bounds) for request in requests]
    began = time.monotonic()
    stop = began + seconds

    def put(times: int) -> None:
        for _ in range(times):
            number = next(numbers)
            place = number % len(requests)
            waiting.put(_Asked(number, demands[place], requests[place]))

    def serve() -> list[Batch]:
        batches = []
        while time.monotonic() < stop:
            if not (taken := waiting.take()):
                continue
            packed, saved = packing.pack([each.request for each in taken])
            pool.executor.submit(pool.run, packed, head).result()
            spared = sum(each.constant + each.request for each in saved)
            since = [each.since for each in taken]
            batches.append(Batch(time.monotonic(), since, packed.num_tokens, spared))
            put(len(taken))
        return batches

    put(in_flight)
    with ThreadPoolExecutor(pool.num_lanes, thread_name_prefix="closed-loop") as threads:
        serving = [threads.submit(serve) for _ in range(pool.num_lanes)]
    batches = [batch for each in serving for batch in each.result()]
    return summarise(batches, in_flight, began + WARM_UP * seconds)


def summarise(batches: Sequence[Batch], in_flight: int, warm: float) -> Load:
    """Of the batches that ended after `warm`; the rate from the end of the first of them to the last's, so
    that no batch counts in part."""
    ordered = sorted(batches, key=lambda batch: batch.answered)
    ordered = [batch for batch in ordered if batch.answered >= warm] or ordered[-1:]
    latencies = sorted(batch.answered - since for batch in ordered for since in batch.waited_since)
    later = sum(len(batch.waited_since) for batch in ordered[1:])
    spent = ordered[-1].answered - ordered[0].answered
    saved, computed = (sum(getattr(batch, key) for batch in ordered) for key in ("saved", "tokens"))
    return Load(
        in_flight,
        requests_per_s=later / spent if spent > 0 else len(latencies) / latencies[-1],
        mean_ms=1e3 * sum(latencies) / len(latencies),
        p99_ms=1e3 * latencies[math.ceil(0.99 * len(latencies)) - 1],
        batch_requests=len(latencies) / len(ordered),
        saved_share=saved / (saved + computed),
    )


@dataclass(frozen=True)
class _Asked:
    """A request as the queue knows it."""

    arrival: int
    demand: Demand
    request: Request
    since: float = field(default_factory=time.monotonic)
    priority: int = 0
    expires_ms: int | None = None


class _Waiting:
    """The worker's queue, for several threads."""

    def __init__(self, bounds: BatchBounds) -> None:
        self._budget = Demand(bounds.tokens, bounds.samples)
        self._queue: RequestQueue[_Asked] = RequestQueue()
        self._changed = Condition()

    def put(self, asked: _Asked) -> None:
        with self._changed:
            self._queue.push(asked)
            self._changed.notify()

    def take(self) -> list[_Asked]:
        """The next batch. Waits 10 ms for its first."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) > 0, 0.01)
            return self._queue.form(self._budget)
