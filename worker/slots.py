"""Slots of one pipeline: how many batches are under way before another one may be formed.

A batch frees its slot with its results, or sooner, at its lane's turn, where the engine tells it: the lane
needs the next batch then, and whoever comes until then is in it. A batch that is formed sooner waits for the
device with its door shut. Forming takes time too (to the event loop and to Redis), by which the engine is to
tell turns sooner: `lead_s` is learned, so that nearly every batch is there in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from worker.forecast import Running

MOST_EACH = 3  # batches a slot: before its turn, at its end, and one whose results are being written
SHARE_IN_TIME = 0.9  # of the batches
LEAD_STEP_S = 50e-6


class Lead:
    """The seconds within which SHARE_IN_TIME of what was observed lies: goes up and down by steps, so that
    one long pause is worth no more than any other."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        step = SHARE_IN_TIME if seconds > self.seconds else SHARE_IN_TIME - 1.0
        self.seconds = max(0.0, self.seconds + step * LEAD_STEP_S)


class Slots:
    """`count` of them. `freed` is told of a turn, with when that was (time.perf_counter); `sooner`, by how
    many seconds the next ones are to be told sooner. On the event loop, apart from what `turn_of` gives."""

    def __init__(self, count: int, freed: Callable[[float], None], sooner: Callable[[float], None]) -> None:
        self._count, self._freed, self._sooner = count, freed, sooner
        self._under_way: set[Running] = set()
        self._lead = Lead()

    @property
    def free(self) -> bool:
        waiting = sum(not batch.turned for batch in self._under_way)
        return waiting < self._count and len(self._under_way) < MOST_EACH * self._count

    def take(self, batch: Running) -> None:
        self._under_way.add(batch)

    def leave(self, batch: Running) -> None:
        """It is through, or will never be. Idempotent."""
        self._under_way.discard(batch)

    def turn_of(self, batch: Running) -> Callable[[], None]:
        """For the engine, on any thread: the batch's slot is free."""
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turn_s = time.perf_counter()
            with suppress(RuntimeError):  # the loop has ended, and whoever waited for a slot
                loop.call_soon_threadsafe(self._turned, batch, turn_s)

        return turn

    def handed_over(self, turn_s: float | None) -> None:
        """A batch goes to the engine for a turn that was then; None: for none, and nothing is learned."""
        if turn_s is not None:
            self._lead.observe(time.perf_counter() - turn_s)
            self._sooner(self._lead.seconds)

    def _turned(self, batch: Running, turn_s: float) -> None:
        batch.turned = True
        self._freed(turn_s)
