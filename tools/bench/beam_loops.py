"""Loads on a captured search: requests in flight, or arriving at random, each of one prompt.

One thread a lane takes what waits, up to the largest batch, as soon as its lane is free. Latency counts from
when a request was due until its results are on the host.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Lock

Prompt = list[int]
Search = Callable[[Sequence[Prompt]], object]  # blocks until the results are there; one call a lane at once
WARM_UP = 0.15  # of the time, not counted
IDLE_S = 20e-6  # between two looks at an empty queue
LEAST_RATE = 1.0  # arrivals a second below which no rate is looked for


@dataclass(frozen=True)
class Load:
    """`offered`: requests in flight, or arrivals a second; `batch`: requests of a batch, on average."""

    offered: float
    requests_per_s: float
    mean_ms: float
    p99_ms: float
    batch: float


class _Queue:
    """Requests with the time when they were due. Any thread."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts, self._numbers = prompts, count()
        self._due: deque[tuple[float, Prompt]] = deque()
        self._lock = Lock()

    def put(self, due: float) -> None:
        self._due.append((due, self._prompts[next(self._numbers) % len(self._prompts)]))

    def take(self, most: int) -> list[tuple[float, Prompt]]:
        """Those that are due, oldest first."""
        now, taken = time.perf_counter(), list[tuple[float, Prompt]]()
        with self._lock:
            while self._due and len(taken) < most and self._due[0][0] <= now:
                taken.append(self._due.popleft())
        return taken


def run_closed(
    search: Search, prompts: Sequence[Prompt], in_flight: int, *, most: int, lanes: int, seconds: float
) -> Load:
    """A request is due the moment that one before it is answered."""
    queue = _Queue(prompts)
    for _ in range(in_flight):
        queue.put(time.perf_counter())
    return _serve(search, queue, float(in_flight), most, lanes, seconds, again=True)


def run_poisson(
    search: Search, prompts: Sequence[Prompt], rate: float, *, most: int, lanes: int, seconds: float
) -> Load:
    """`rate` requests a second on average, whatever the answers do."""
    queue, draws, due = _Queue(prompts), random.Random(3), time.perf_counter() + 0.01
    end = due + seconds
    while due < end:
        queue.put(due)
        due += draws.expovariate(rate)
    return _serve(search, queue, rate, most, lanes, seconds, again=False)


def best_rate(
    search: Search, prompts: Sequence[Prompt], first: float, *, most: int, lanes: int, seconds: float,
    mean_ms: float,
) -> list[Load]:  # fmt: skip
    """Loads at rates a twentieth apart: from `first` up to one of a longer mean latency, or, where that one's
    is longer already, down to one of a shorter."""
    loads = [run_poisson(search, prompts, first, most=most, lanes=lanes, seconds=seconds)]
    over, rate = loads[0].mean_ms > mean_ms, first
    while (loads[-1].mean_ms > mean_ms) == over and rate > LEAST_RATE:
        rate *= 1 / 1.05 if over else 1.05
        loads.append(run_poisson(search, prompts, rate, most=most, lanes=lanes, seconds=seconds))
    return loads


def _serve(
    search: Search, queue: _Queue, offered: float, most: int, lanes: int, seconds: float, *, again: bool
) -> Load:
    began = time.perf_counter()
    stop, warm = began + seconds, began + WARM_UP * seconds

    def work() -> list[tuple[float, list[float]]]:
        batches = []
        while time.perf_counter() < stop:
            if not (taken := queue.take(most)):
                time.sleep(IDLE_S)
                continue
            search([prompt for _, prompt in taken])
            now = time.perf_counter()
            batches.append((now, [now - due for due, _ in taken]))
            for _ in taken if again else ():
                queue.put(now)
        return batches

    with ThreadPoolExecutor(lanes) as threads:
        done = sorted(
            batch for each in [threads.submit(work) for _ in range(lanes)] for batch in each.result()
        )
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
