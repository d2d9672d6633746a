"""How much one stream has taken in and not yet settled: the bound behind which it stops reading.

Used by the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import time


class Window:
    """Requests and bytes between being read and being settled.

    The byte bound is checked before reading, so one fetch may pass it; its records were in memory anyway.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.num_requests = 0
        self.num_bytes = 0
        self.busy_since_s = time.monotonic()  # when the first record entered an empty window
        self._changed = asyncio.Event()

    @property
    def room(self) -> int:
        """How many requests may be read now."""
        if self.num_bytes >= self._max_bytes:
            return 0
        return max(0, self._max_requests - self.num_requests)

    def enter(self, num_bytes: int) -> None:
        if not self.num_requests:
            self.busy_since_s = time.monotonic()
        self.num_requests += 1
        self.num_bytes += num_bytes

    def leave(self, num_bytes: int) -> None:
        self.num_requests -= 1
        self.num_bytes -= num_bytes
        self._changed.set()

    def nudge(self) -> None:
        """There may be room for another reason than a record that left."""
        self._changed.set()

    async def changed(self, timeout_s: float) -> None:
        """Return when there may be more room, or after `timeout_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass


class Busy:
    """Counts work that cannot be taken back (executing or being answered) and tells when there is none."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self, count: int = 1) -> None:
        self.count += count
        if self.count:
            self._none.clear()

    def end(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none(self, timeout_s: float) -> bool:
        """Wait until nothing is busy; False when that took longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none.wait()
        except TimeoutError:
            return False
        return True
