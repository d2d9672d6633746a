"""The last steps of a record, in this order: dead letter or reply acked, record done, window freed, counted.

One Delivery a pipeline, on the event loop. A record whose reply and dead letter both cannot be published is
counted as lost and done: it must not come again for ever. When Kafka takes nothing at all, the record stays
undone and `on_unreachable` is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from schemas.messages import ErrorCode, ErrorInfo, Outcome
from worker.logs import Throttle
from worker.metrics import PipelineMetrics
from worker.offsets import OffsetTracker
from worker.publisher import Publisher, RefusedError, TooLateError, UnreachableError
from worker.records import Verdict, Work
from worker.replies import Outgoing, ReplyWriter
from worker.verdicts import refusal
from worker.window import Busy, Window

log = structlog.get_logger(__name__)

UNDELIVERABLE = "boundgen.ReplyUndeliverable"  # in the dead letter's exception-fqcn


@dataclass(frozen=True)
class Bookkeeping:
    """Where a stream keeps what is in flight."""

    tracker: OffsetTracker
    window: Window
    busy: Busy
    metrics: PipelineMetrics


class Delivery:
    """Settles works. `overdue`: the verdict that replaces an answer whose publishing had to be tried again.
    `last_settled_s` (time.monotonic) is for the watchdog."""

    def __init__(
        self,
        publisher: Publisher,
        writer: ReplyWriter,
        books: Bookkeeping,
        max_reply_bytes: int,
        overdue: Callable[[Work], Verdict | None],
        on_unreachable: Callable[[str], None],
    ) -> None:
        self._publisher = publisher
        self._writer = writer
        self._tracker = books.tracker
        self._window = books.window
        self._busy = books.busy
        self._metrics = books.metrics
        self._max_reply_bytes = max_reply_bytes
        self._overdue = overdue
        self._on_unreachable = on_unreachable
        self._throttle = Throttle()
        self.last_settled_s = time.monotonic()

    async def settle(self, work: Work, verdict: Verdict) -> None:
        """Tell the world and be done with the record. The caller has counted it as busy."""
        started_s = time.perf_counter()
        try:
            outcome = await self._tell(work, verdict)
        except UnreachableError as error:
            self._on_unreachable(f"Kafka took neither reply nor dead letter: {error}")
            return
        except Exception:  # a bug of ours: the record must not come again for ever
            log.exception(
                "a record could not be settled: it is dropped and its offset advances", **_where(work)
            )
            outcome = Outcome.FAILED
        finally:
            self._busy.end()
        now_s = time.perf_counter()
        self._metrics.stage["reply"].observe(now_s - started_s)
        self._metrics.stage["total"].observe(now_s - work.received_s)
        self._tracker.done(work.place)
        self._window.leave(work.num_bytes)
        self._metrics.requests[outcome].inc()
        if work.model_runs:
            self._metrics.model_requests[outcome].inc()
        self.last_settled_s = time.monotonic()

    async def _tell(self, work: Work, verdict: Verdict) -> Outcome:
        if verdict.dead is not None:
            assert verdict.error is not None, "a dead letter says why"
            await self._bury(work, verdict.dead, _said(verdict.error))
        if work.route is None:
            return verdict.outcome
        reply, verdict = self._reply(work, verdict)
        try:
            await self._publisher.send(reply, lambda: not verdict.rows or self._overdue(work) is None)
        except TooLateError:
            late = self._overdue(work)
            assert late is not None, "time only goes on"
            return await self._tell(work, late)
        except RefusedError as error:
            if error.reason == "too_large" and verdict.rows:
                return await self._tell(work, _too_large_to_send(str(error)))
            if verdict.dead is None:
                await self._bury(work, UNDELIVERABLE, str(error))
            return Outcome.FAILED
        return verdict.outcome

    def _reply(self, work: Work, verdict: Verdict) -> tuple[Outgoing, Verdict]:
        reply, verdict = self._writer.reply(work, verdict)
        size = len(reply.value or b"")
        if size > self._max_reply_bytes and verdict.rows:
            message = f"the reply has {size} bytes, replies.max_bytes is {self._max_reply_bytes}"
            return self._writer.reply(work, _too_large_to_send(message))
        return reply, verdict

    async def _bury(self, work: Work, exception_class: str, message: str) -> None:
        letter = self._writer.dead_letter(work, exception_class, message)
        try:
            await self._send_letter(letter)
        except RefusedError as error:
            self._metrics.dead_letters_lost.inc()
            if (kept := self._throttle.allow("lost")) is not None:
                log.error(
                    "dead letter lost: the record stays in its topic only, the offset advances",
                    **_where(work),
                    reason=message,
                    error=str(error),
                    kept_back=kept,
                )
            return
        self._metrics.dead_letters_written.inc()
        if (kept := self._throttle.allow("written")) is not None:
            log.warning(
                "dead letter written: the offset advances", **_where(work), reason=message, kept_back=kept
            )

    async def _send_letter(self, letter: Outgoing) -> None:
        try:
            await self._publisher.send(letter)
        except RefusedError as error:
            if error.reason != "no_partition":
                raise
            await self._publisher.send(replace(letter, partition=None))  # fewer partitions than the requests


def _where(work: Work) -> dict[str, object]:
    place = work.place
    return {"topic": place.partition.topic, "partition": place.partition.partition, "offset": place.offset}


def _said(error: ErrorInfo) -> str:
    """The message with its field: a dead letter and the log have no other place for it."""
    if error.field is None or error.message.startswith((f"{error.field} ", f"{error.field}:", "header ")):
        return error.message
    return f"{error.field}: {error.message}"


def _too_large_to_send(message: str) -> Verdict:
    return refusal(ErrorCode.INTERNAL, message)
