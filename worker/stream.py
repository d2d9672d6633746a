"""One pipeline's way from its topic to its replies: own consumer, group, window, queue, offsets.

Streams share the publisher and the engine's lanes, nothing else: one that is full stops reading its own topic
and no other. On the event loop; admission runs on the stream's own preparing threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from engine.pipeline import Pipeline
from schemas.client.stopping import stop_consumer
from worker.admission import Admission
from worker.commits import Committer
from worker.consumer import ConsumerHooks, GroupConsumer, make_consumer
from worker.deadlines import Clock
from worker.delivery import Bookkeeping, Delivery
from worker.execution import Execution, ExecutionRules, Exits
from worker.intake import Intake, Ways
from worker.metrics import PipelineMetrics
from worker.offsets import OffsetTracker, Place
from worker.publisher import Publisher
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.replies import ReplyWriter
from worker.settings import KafkaSettings, QueueSettings
from worker.verdicts import expiry
from worker.window import Busy, Window

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StreamOptions:
    """What one stream is told. `worker` names the process in replies."""

    worker: str
    topic: str
    group: str
    kafka: KafkaSettings
    queue: QueueSettings
    max_reply_bytes: int
    publish_late: bool


class Stream:
    """Made and used on the event loop."""

    def __init__(
        self,
        options: StreamOptions,
        connection: dict[str, Any],
        pipeline: Pipeline,
        admission: Admission,
        publisher: Publisher,
        store: DeadlineStore,
        metrics: PipelineMetrics,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.options = options
        self.pipeline = pipeline
        self._metrics = metrics
        self._on_fatal = on_fatal
        self._clock = store.clock
        self._tracker = OffsetTracker()
        self._window = Window(options.queue.max_requests, options.queue.max_bytes)
        self._busy = Busy()
        self._held = False
        self._tasks: list[asyncio.Task[None]] = []
        writer = ReplyWriter(options.worker, options.group, pipeline.model)
        bookkeeping = Bookkeeping(self._tracker, self._window, self._busy, metrics)
        self._delivery = Delivery(
            publisher, writer, bookkeeping, options.max_reply_bytes, self._overdue, on_fatal
        )
        exits = Exits(
            settle=self._delivery.settle,
            release=self._release,
            prepare=lambda work: self._intake.prepare(work),  # noqa: PLW0108 - made below
            on_bug=on_fatal,
        )
        rules = ExecutionRules(options.queue.overload_factor, options.publish_late)
        self._execution = Execution(pipeline, store, self._busy, metrics, rules, exits)
        ways = Ways(
            ready=self._execution.push,
            expired=self._execution.expire,
            refused=self._execution.finish,
            stale=lambda work: self._held or not self._tracker.current(work.place),
            release=self._release,
        )
        threads = options.queue.prepare_threads
        self._intake = Intake(pipeline.name, threads, admission, store.clock, metrics, ways)
        self._open_consumer(connection, store.clock)
        metrics.inflight.set_function(lambda: self._window.num_requests)
        metrics.inflight_bytes.set_function(lambda: self._window.num_bytes)
        metrics.lag.set_function(lambda: self._reader.lag)

    def _open_consumer(self, connection: dict[str, Any], clock: Clock) -> None:
        kafka = self.options.kafka
        self._consumer: AIOKafkaConsumer = make_consumer(connection, kafka, self.options.group)
        self._committer = Committer(
            self._consumer,
            self._tracker,
            self._metrics,
            interval_ms=kafka.commit_interval_ms,
            timeout_ms=kafka.commit_timeout_ms,
            on_committed=self._window.nudge,
        )
        hooks = ConsumerHooks(
            take=self._take,
            announce=self._committer.commit,
            may_read=self._may_read,
            revoked=self._revoked,
            assigned=self._assigned,
        )
        self._reader = GroupConsumer(self._consumer, self._tracker, self._window, clock, self._metrics, hooks)

    @property
    def complaint(self) -> str | None:
        """Why no record of this pipeline can be served now; None: nothing is in the way."""
        if not self._reader.assigned:
            return "no partitions assigned yet"
        if not self._reader.coordinated:
            return "the consumer group has no coordinator"
        return "commits fail" if self._committer.failing_since_s is not None else None

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def num_inflight(self) -> int:
        return self._window.num_requests

    @property
    def idle_or_settled_s(self) -> float:
        """When a record was last settled, or the first was taken after there was none."""
        return max(self._delivery.last_settled_s, self._window.busy_since_s)

    @property
    def read_s(self) -> float:
        return self._reader.beat_s

    @property
    def commits_failing_since_s(self) -> float | None:
        return self._committer.failing_since_s

    async def start(self) -> None:
        """Join the group and begin to read. KafkaError or TimeoutError."""
        timeout_ms = self.options.kafka.start_timeout_ms
        try:
            await self._reader.start(self.options.topic, timeout_ms / 1000)
        except TimeoutError as error:
            reason = f"the group {self.options.group!r} was not joined in that time"
            raise TimeoutError(f"kafka.start_timeout_ms = {timeout_ms}: {reason}") from error
        for name, work in (("read", self._reader.run()), ("commit", self._committer.run())):
            task = asyncio.create_task(work, name=f"{self.pipeline.name}-{name}")
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def drain(self, timeout_s: float) -> bool:
        """Stop reading, finish what was taken; False if that took over `timeout_s` and was given up."""
        for task in self._tasks[:1]:  # the reading one
            task.cancel()
        give_up_s = time.monotonic() + timeout_s
        while self._window.num_requests and (left_s := give_up_s - time.monotonic()) > 0:
            await self._window.changed(min(left_s, 0.05))
        finished = not self._window.num_requests
        self._held = True
        for work in self._execution.hold():
            self._release(work)
        self._execution.abandon()
        return finished

    async def close(self, timeout_s: float) -> bool:
        """Commit, leave the group, end the threads; whether everything done is committed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        committed = await self._committer.commit()
        await self._leave_group(timeout_s)
        self._intake.close()
        return committed

    async def _leave_group(self, timeout_s: float) -> None:
        error = await stop_consumer(self._consumer, timeout_s)
        if error is not None:
            log.warning("the group was not left in time: it waits for the session timeout", error=repr(error))

    def _may_read(self) -> int:
        if self._tracker.suspect:  # one at a time, so that the guilty one is known when it happens again
            return 0 if self._window.num_requests else 1
        return min(self._window.room, self.options.queue.max_uncommitted - self._tracker.num_uncommitted)

    def _take(self, place: Place, record: ConsumerRecord, not_before_ms: int | None) -> None:
        work = self._intake.take(place, record, not_before_ms)
        self._window.enter(work.num_bytes)

    def _overdue(self, work: Work) -> Verdict | None:
        if self.options.publish_late:
            return None
        return expiry(work, self._clock.now_ms(), "before its reply could be published")

    def _release(self, work: Work) -> None:
        """Give a record back unanswered: it stays uncommitted, its next owner answers it."""
        self._tracker.release(work.place)
        self._window.leave(work.num_bytes)
        self._metrics.released.inc()

    async def _revoked(self) -> None:
        """Before partitions go: what runs or is being answered may end, the rest is for their next owner."""
        self._held = True
        for work in self._execution.hold():
            self._release(work)
        if not await self._busy.none(self.options.kafka.revoke_drain_ms / 1000):
            log.warning(
                "a rebalance overtook work in flight: it will be answered twice", requests=self._busy.count
            )
        await self._committer.commit()

    def _assigned(self) -> None:
        self._held = False
        self._execution.resume()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(f"{task.get_name()} ended: {error!r}")
