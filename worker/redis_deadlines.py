"""Deadlines that changed after sending, read from Redis for one batch at a time.

Contract: on one event loop. `lookup` never raises and takes at most the line's timeout_ms, and that once
while Redis does not answer; what Redis does not say is left out, and the message's own deadline counts
(fail open, counted). `effective` in worker.deadlines joins the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.deadlines import GARBAGE, deadline_key, parse_deadline
from worker.deadlines import MIN_EPOCH_MS, Cancelled, Clock
from worker.redis_line import LineCounters, LineOptions, RedisLine


@dataclass
class StoreCounters:
    """Since the start. Written on the event loop only; plain numbers, to be read from anywhere."""

    ids: int = 0  # requests looked up
    found: int = 0  # deadlines and cancellations that were there
    garbage: int = 0  # values that are neither, or no milliseconds; treated as no key
    failed_open: int = 0  # ids that kept their message's own deadline because Redis gave no answer


class DeadlineStore:
    """The deadlines behind `options.url` (None: no Redis, nothing known), on the timeline of `clock`."""

    def __init__(self, options: LineOptions | None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.counters = StoreCounters()
        self._line = None if options is None else RedisLine(options, self.clock)

    @property
    def available(self) -> bool:
        """Whether the next lookup will ask Redis."""
        return self._line is not None and self._line.open

    @property
    def line_counters(self) -> LineCounters:
        return LineCounters() if self._line is None else self._line.counters

    async def start(self) -> None:
        """Connect; bounded, and never an error: without Redis the messages' own deadlines count."""
        if self._line is not None:
            await self._line.start()

    async def close(self) -> None:
        if self._line is not None:
            await self._line.close()

    async def lookup(self, ids: Sequence[str]) -> dict[str, int | Cancelled]:
        """Of these requests those Redis knows: ms on the timeline of `clock`, or CANCELLED."""
        if self._line is None or not ids:
            return {}
        self.counters.ids += len(ids)
        values = await self._line.ask([deadline_key(each) for each in ids])
        if values is None:
            self.counters.failed_open += len(ids)
            return {}
        offset_ms = self.clock.offset_ms
        found: dict[str, int | Cancelled] = {}
        for request_id, value in zip(ids, values, strict=True):
            parsed = parse_deadline(value)
            if parsed is GARBAGE or (isinstance(parsed, int) and parsed < MIN_EPOCH_MS):
                self.counters.garbage += 1
            elif isinstance(parsed, int):
                found[request_id] = round(parsed - offset_ms)
            elif parsed is not None:
                found[request_id] = parsed
        self.counters.found += len(found)
        return found
