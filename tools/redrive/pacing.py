"""At most so many sends a second, evenly: no burst after a pause, since workers would have to take it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Pacer:
    """`await pacer.turn()` before each send. Clock and sleep are seconds."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`rate` a second; 0: as fast as it goes."""
        self._gap_s = 1 / rate if rate else 0.0
        self._clock = clock
        self._sleep = sleep
        self._next_s: float | None = None

    async def turn(self) -> None:
        """Returns when the next send may go; the first at once."""
        now_s = self._clock()
        if self._next_s is not None and now_s < self._next_s:
            await self._sleep(self._next_s - now_s)
            now_s = self._next_s
        self._next_s = now_s + self._gap_s
