"""Closed loop on the engine alone: N requests in flight, each a new one when its answer is there."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Condition

from torch import Tensor

from engine.packed import BatchBounds
from engine.prefixes import Ids, Prefixes
from engine.runtime.lanes import LanePool

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
    began = time.monotonic()
    stop = began + seconds

    def put(times: int) -> None:
        for _ in range(times):
            waiting.put(requests[next(numbers) % len(requests)])

    def serve() -> list[Batch]:
        batches = []
        while time.monotonic() < stop:
            if not (taken := waiting.take()):
                continue
            packed, saved = packing.pack([request for _, request in taken])
            pool.executor.submit(pool.run, packed, head).result()
            spared = sum(each.constant + each.request for each in saved)
            since = [arrived for arrived, _ in taken]
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


class _Waiting:
    """Requests in the order in which they came, with the time when they did."""

    def __init__(self, bounds: BatchBounds) -> None:
        self._bounds = bounds
        self._requests: deque[tuple[float, Request]] = deque()
        self._changed = Condition()

    def put(self, request: Request) -> None:
        with self._changed:
            self._requests.append((time.monotonic(), request))
            self._changed.notify()

    def take(self) -> list[tuple[float, Request]]:
        """The first that fit the bounds together, saved tokens counted too: where prefixes save many, fewer
        than a worker would take. Waits 10 ms for the first."""
        taken: list[tuple[float, Request]] = []
        tokens = samples = 0
        with self._changed:
            self._changed.wait_for(lambda: self._requests, 0.01)
            while self._requests:
                request = self._requests[0][1]
                tokens, samples = tokens + sum(map(len, request)), samples + len(request)
                over = tokens > self._bounds.tokens or samples > self._bounds.samples
                if taken and over:
                    break
                taken.append(self._requests.popleft())
        return taken
