"""How many requests may be under way: more while answers come, half when workers say that it is too much.

Additive increase, multiplicative decrease, as TCP does; a refusal at the smallest window also pauses, longer
each time. What is tried again goes before what is new, so that parts end. One event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

FIRST = 4.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0


class Window:
    """acquire() before each request, then succeeded() or refused(), then release()."""

    def __init__(self, most: int) -> None:
        self.limit = min(FIRST, float(most))
        self.refusals = 0
        self._most = most
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pause_s = 0.0
        self._resume_at = 0.0
        self._halved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, *, again: bool = False) -> float:
        """Wait for a place; the moment of getting it, for `refused`."""
        place = asyncio.get_running_loop().create_future()
        if again:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release()
            raise
        return time.monotonic()

    def release(self) -> None:
        self._under_way -= 1
        self._admit()

    def succeeded(self) -> None:
        """An answer came: one more a round."""
        self.limit = min(float(self._most), self.limit + 1 / self.limit)
        self._pause_s = self._resume_at = 0.0

    def refused(self, sent_at: float) -> None:
        """Too much. What was sent before the last halving says nothing about the window since."""
        self.refusals += 1
        if sent_at < self._halved_at:
            return
        self._halved_at = time.monotonic()
        if self.limit <= 1:
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2 or FIRST_PAUSE_S)
            self._resume_at = self._halved_at + self._pause_s
        self.limit = max(1.0, self.limit / 2)

    def _admit(self) -> None:
        wait_s = self._resume_at - time.monotonic()
        if wait_s > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._resume)
            return
        while self._waiting and self._under_way < int(self.limit):
            place = self._waiting.popleft()
            if not place.done():
                self._under_way += 1
                place.set_result(None)

    def _resume(self) -> None:
        self._timer = None
        self._admit()
