"""Closed loop on the engine alone: N requests in flight, each a new one when its answer is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

from torch import Tensor

from engine.packed import BatchBounds
from engine.prefixes import Ids, Prefixes
from engine.runtime.lanes import LanePool

Request = Sequence[Ids]


@dataclass(frozen=True)
class Load:
    """Requests per second, and latency from handing a request over to having its answer, milliseconds."""

    in_flight: int
    requests_per_s: float
    mean_ms: float
    p99_ms: float


def run_closed_loop(
    pool: LanePool,
    head: Callable[[Tensor], tuple[Tensor, ...]],
    requests: Sequence[Request],
    *,
    in_flight: int,
    seconds: float,
    bounds: BatchBounds,
    prefixes: Prefixes | None = None,
) -> Load:
    """A batch takes what waits, up to the bounds, as soon as a lane is free. `prefixes`: how it is packed."""
    packing = prefixes or Prefixes()
    waiting: SimpleQueue[tuple[float, Request]] = SimpleQueue()
    latencies: list[float] = []
    stop = time.monotonic() + seconds
    upcoming = iter(range(1 << 60))

    def put() -> None:
        waiting.put((time.monotonic(), requests[next(upcoming) % len(requests)]))

    def serve() -> None:
        while time.monotonic() < stop:
            taken = _take(waiting, bounds)
            if not taken:
                continue
            packed, _ = packing.pack([request for _, request in taken])
            pool.executor.submit(pool.run, packed, head).result()
            now = time.monotonic()
            for began, _ in taken:
                latencies.append(now - began)
                put()

    for _ in range(in_flight):
        put()
    threads = [Thread(target=serve) for _ in range(pool.num_lanes)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    ordered = sorted(latencies[len(latencies) // 10 :])  # the first tenth warms up
    mean = sum(ordered) / max(1, len(ordered))
    p99 = ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0
    return Load(in_flight, len(latencies) / elapsed, 1e3 * mean, 1e3 * p99)


def _take(waiting: SimpleQueue[tuple[float, Request]], bounds: BatchBounds) -> list[tuple[float, Request]]:
    """What waits, up to the bounds; a request that does not fit goes back. Waits 10 ms for the first."""
    taken: list[tuple[float, Request]] = []
    tokens = samples = 0
    while True:
        try:
            item = waiting.get(timeout=0.01) if not taken else waiting.get_nowait()
        except Empty:
            return taken
        size = sum(len(sample) for sample in item[1])
        if tokens + size > bounds.tokens or samples + len(item[1]) > bounds.samples:
            waiting.put(item)
            return taken
        taken.append(item)
        tokens, samples = tokens + size, samples + len(item[1])
