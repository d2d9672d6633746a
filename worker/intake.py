"""From a record that was taken to a work that is ready or has a verdict: the hop over preparing threads.

Called on the event loop and calls back there. A pipeline has its own threads, so that another's long texts do
not delay it; how much waits for them is bounded by the stream's window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import structlog
from aiokafka import ConsumerRecord

from schemas.messages import ErrorCode, Outcome
from worker.admission import Admission
from worker.deadlines import Clock
from worker.metrics import PipelineMetrics
from worker.offsets import Place
from worker.records import Verdict, Work
from worker.verdicts import refusal

log = structlog.get_logger(__name__)

INTERNAL = "boundgen.InternalError"  # in the dead letter's exception-fqcn


@dataclass(frozen=True)
class Ways:
    """Where a work goes from here. stale: whether it is no longer ours or must not start. expired: over at
    receipt, by its own message."""

    ready: Callable[[Work], None]
    expired: Callable[[Work, Verdict], None]
    refused: Callable[[Work, Verdict], None]
    stale: Callable[[Work], bool]
    release: Callable[[Work], None]


class Intake:
    """One pipeline's."""

    def __init__(
        self,
        name: str,
        threads: int,
        admission: Admission,
        clock: Clock,
        metrics: PipelineMetrics,
        ways: Ways,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-prepare")
        self._admission = admission
        self._clock = clock
        self._metrics = metrics
        self._ways = ways
        self._arrivals = count()

    def take(self, place: Place, record: ConsumerRecord, not_before_ms: int | None) -> Work:
        """A record has come in; the work is on its way."""
        received_ms, received_s = self._clock.now_ms(), time.perf_counter()
        work = Work(place, record, next(self._arrivals), received_ms, received_s, not_before_ms)
        self._metrics.records.inc()
        if place.attempt > 1:
            self._metrics.redelivered.inc()
        self._send(work, self._admission.admit)
        return work

    def prepare(self, work: Work) -> None:
        """Only the last step is left: it was over at receipt and has been extended."""
        self._send(work, self._admission.prepare)

    def close(self) -> None:
        """Start nothing more; what runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, work: Work, step: Callable[[Work], Verdict | None]) -> None:
        admitting = asyncio.get_running_loop().run_in_executor(self._threads, step, work)
        admitting.add_done_callback(lambda done: self._came_back(work, done))

    def _came_back(self, work: Work, admitting: asyncio.Future[Verdict | None]) -> None:
        if admitting.cancelled() or self._ways.stale(work):
            self._ways.release(work)
            return
        if work.deadline is not None and work.deadline.oddity is not None:
            self._metrics.odd_deadline(work.deadline.oddity)
        self._metrics.stage["tokenize"].observe(work.tokenize_s)
        error = admitting.exception()
        verdict = admitting.result() if error is None else _bug(error)
        if verdict is None:
            self._ways.ready(work)
        elif verdict.outcome is Outcome.EXPIRED:
            self._ways.expired(work, verdict)
        else:
            self._ways.refused(work, verdict)


def _bug(error: BaseException) -> Verdict:
    """Admission never raises; where it does, that is one record's failure, kept for whoever mends it."""
    log.error("admission failed: the record becomes a dead letter", exc_info=error)
    return refusal(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}", dead=INTERNAL)
