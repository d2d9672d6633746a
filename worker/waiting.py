"""The queue that acts by itself: what expires while it waits leaves when it expires, not when a slot comes.

On the event loop; one timer, set to the next expiry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import Gauge

from engine.demand import Demand
from worker.batching import Choose, RequestQueue
from worker.deadlines import Clock
from worker.records import Verdict, Work
from worker.verdicts import expiry

MIN_SWEEP_S = 0.001  # requests that expire within a millisecond leave together


class WaitingRoom:
    """Prepared requests of one pipeline. `on_expired` gets those whose time is over."""

    def __init__(
        self, budget: Demand, clock: Clock, on_expired: Callable[[Work, Verdict], None], size: Gauge
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._on_expired = on_expired
        self._size = size
        self._queue: RequestQueue[Work] = RequestQueue()
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_ms: int | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, work: Work) -> None:
        self._queue.push(work)
        self._plan()

    def form(self, choose: Choose[Work] | None = None) -> list[Work]:
        """The next batch, nothing expired in it; empty when nothing waits. `choose`: how many, where fewer
        than fit may do better."""
        self._expire()
        batch = self._queue.form(self._budget, choose)
        self._size.set(len(self._queue))
        return batch

    def ahead_of(self, priority: int) -> Demand:
        return self._queue.ahead_of(priority)

    def drain(self) -> list[Work]:
        """Take out all that waits."""
        works = self._queue.drain()
        self._plan()
        return works

    def _expire(self) -> None:
        now_ms = self._clock.now_ms()
        for work in self._queue.expired(now_ms):
            verdict = expiry(work, now_ms, "while it waited")
            assert verdict is not None, "the queue gave it out as expired"
            self._on_expired(work, verdict)

    def _plan(self) -> None:
        self._size.set(len(self._queue))
        next_ms = self._queue.next_expiry()
        if next_ms == self._sweep_ms:
            return
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._sweep_ms = next_ms
        if next_ms is not None:
            delay_s = max(MIN_SWEEP_S, (next_ms - self._clock.now_ms()) / 1000)
            self._sweep = asyncio.get_running_loop().call_later(delay_s, self._swept)

    def _swept(self) -> None:
        self._sweep = self._sweep_ms = None
        self._expire()
        self._plan()
