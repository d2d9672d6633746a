"""Requests whose message says that their time is over get one look at Redis before they are refused.

A key may have extended them while they waited, or be the only right time of a producer whose clock is behind.
On the event loop; one lookup at a time, for all that came meanwhile, so that a backlog of expired requests
costs few round trips. Without Redis, or past what it may extend to, they are refused at once. A work taken
here has not begun: it may be taken back with `drain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from schemas.deadlines import CANCELLED
from schemas.messages import ErrorCode
from worker.deadlines import Cancelled, effective
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.verdicts import refusal

MAX_IDS = 512  # in one MGET


def cancellation() -> Verdict:
    return refusal(ErrorCode.CANCELLED, "cancelled by its producer")


class SecondLook:
    """Works leave through `revived` (their deadline is the new one) or `finish`."""

    def __init__(
        self,
        store: DeadlineStore,
        revived: Callable[[Work], None],
        finish: Callable[[Work, Verdict], None],
    ) -> None:
        self._store = store
        self._revived = revived
        self._finish = finish
        self._expired: dict[Work, Verdict] = {}
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._expired)

    def take(self, work: Work, verdict: Verdict) -> None:
        """`verdict` is what becomes of it unless Redis knows better."""
        assert work.deadline is not None, "only a deadline expires"
        if not self._store.available or work.deadline.horizon_ms <= self._store.clock.now_ms():
            self._finish(work, verdict)
            return
        self._expired[work] = verdict
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="second-look")

    def drain(self) -> list[Work]:
        """Take out all that wait for the answer."""
        works = list(self._expired)
        self._expired.clear()
        return works

    async def _look(self) -> None:
        while batch := list(islice(self._expired, MAX_IDS)):
            found = await self._store.lookup([work.request_id or "" for work in batch])
            for work in batch:
                if (verdict := self._expired.pop(work, None)) is not None:  # None: drained meanwhile
                    self._decide(work, verdict, found)

    def _decide(self, work: Work, verdict: Verdict, found: dict[str, int | Cancelled]) -> None:
        assert work.deadline is not None, "only a deadline expires"
        deadline = effective(work.deadline, found.get(work.request_id or ""))
        if deadline is CANCELLED:
            self._finish(work, cancellation())
        elif deadline.expired(self._store.clock.now_ms()):
            self._finish(work, verdict)
        else:
            work.deadline = deadline
            self._revived(work)
