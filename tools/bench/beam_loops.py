"""Loads on a captured search: requests in flight, or arriving at random, each of one prompt.

As a worker serves them: a lane that may take its next batch gets what waits, up to the largest, and another
thread waits for the results. Latency counts from when a request was due until its results are on the host.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Lock

Prompt = list[int]
Finish = Callable[[], object]  # blocks until the results are there


@dataclass(frozen=True)
class Lanes:
    """`begin`, on a thread of `executor`, returns when that lane may take its next batch; what comes back
    goes to `finisher`. `most` requests a batch."""

    executor: Executor
    finisher: Executor
    begin: Callable[[Sequence[Prompt]], Finish]
    count: int
    most: int


WARM_UP = 0.15  # of the time, not counted
LEAST_RATE = 1.0  # arrivals a second below which no rate is looked for


@dataclass(frozen=True)
class Load:
    """`offered`: requests in flight, or arrivals a second; `batch`: requests of a batch, on average."""

    offered: float
    requests_per_s: float
    mean_ms: float
    p99_ms: float
    batch: float


class _Server:
    """Requests that are due, and lanes that may take them. Any thread; the first error ends it."""

    def __init__(self, lanes: Lanes, prompts: Sequence[Prompt], *, again: bool) -> None:
        """`again`: a request is due the moment that one before it is answered."""
        self._lanes, self._prompts, self._again = lanes, prompts, again
        self._due: deque[tuple[float, Prompt]] = deque()
        self._num_put, self._num_free, self._open = 0, lanes.count, True
        self._lock = Lock()
        self._jobs: deque[Future[None]] = deque()
        self.batches: list[tuple[float, list[float]]] = []  # when each was answered, and its requests' waits

    def put(self, due: float, count: int = 1) -> None:
        """As many requests at once; a free lane takes them."""
        with self._lock:
            for _ in range(count):
                self._due.append((due, self._prompts[self._num_put % len(self._prompts)]))
                self._num_put += 1
        self._fill()

    def close(self) -> None:
        """What waits is dropped, what runs is waited for."""
        self._open = False
        while self._jobs:  # each adds its next before it ends
            self._jobs.popleft().result()

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not (self._open and self._num_free and self._due):
                    return
                self._num_free -= 1
                taken = [self._due.popleft() for _ in range(min(len(self._due), self._lanes.most))]
                self._jobs.append(self._lanes.executor.submit(self._begin, taken))

    def _begin(self, taken: list[tuple[float, Prompt]]) -> None:
        finish = self._lanes.begin([prompt for _, prompt in taken])
        self._jobs.append(self._lanes.finisher.submit(self._finish, finish, taken))
        with self._lock:
            self._num_free += 1
        self._fill()

    def _finish(self, finish: Finish, taken: list[tuple[float, Prompt]]) -> None:
        finish()
        now = time.perf_counter()
        self.batches.append((now, [now - due for due, _ in taken]))
        if self._again:
            self.put(now, len(taken))


def run_closed(lanes: Lanes, prompts: Sequence[Prompt], in_flight: int, *, seconds: float) -> Load:
    """A request is due the moment that one before it is answered."""
    server, began = _Server(lanes, prompts, again=True), time.perf_counter()
    server.put(began, in_flight)
    time.sleep(seconds)
    server.close()
    return _count(server.batches, float(in_flight), began + WARM_UP * seconds)


def run_poisson(lanes: Lanes, prompts: Sequence[Prompt], rate: float, *, seconds: float) -> Load:
    """`rate` requests a second on average, whatever the answers do."""
    server, draws, began = _Server(lanes, prompts, again=False), random.Random(3), time.perf_counter()
    due = began
    while (due := due + draws.expovariate(rate)) < began + seconds:
        time.sleep(max(0.0, due - time.perf_counter()))
        server.put(due)
    server.close()
    return _count(server.batches, rate, began + WARM_UP * seconds)


def best_rate(
    lanes: Lanes, prompts: Sequence[Prompt], first: float, *, seconds: float, mean_ms: float
) -> list[Load]:
    """Loads at rates a twentieth apart: from `first` up to one of a longer mean latency, or, where that one's
    is longer already, down to one of a shorter."""
    loads = [run_poisson(lanes, prompts, first, seconds=seconds)]
    over, rate = loads[0].mean_ms > mean_ms, first
    while (loads[-1].mean_ms > mean_ms) == over and rate > LEAST_RATE:
        rate *= 1 / 1.05 if over else 1.05
        loads.append(run_poisson(lanes, prompts, rate, seconds=seconds))
    return loads


def _count(batches: list[tuple[float, list[float]]], offered: float, warm: float) -> Load:
    """Of the batches that were answered after `warm`."""
    done = sorted(batches)
    counted = [batch for batch in done if batch[0] >= warm] or done[-1:]
    waits = sorted(wait for _, each in counted for wait in each)
    spent = counted[-1][0] - counted[0][0]
    later = sum(len(each) for _, each in counted[1:])
    return Load(
        offered,
        later / spent if spent > 0 else len(waits) / max(waits),
        1e3 * sum(waits) / len(waits),
        1e3 * waits[math.ceil(0.99 * len(waits)) - 1],
        len(waits) / len(counted),
    )
