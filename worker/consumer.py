"""Reads one topic as a member of a consumer group.

On the event loop. Reading stops while there is no room (never by aiokafka's pause, which throws away what was
fetched). Whatever fails while reading, every partition goes on where the tracker says; a partition that
cannot be read does not hold up the others.

The first records of a partition, and suspects (offsets.py), are handed over only when a commit says that they
were taken: whatever they do to this process, the next owner will know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import ConsumerStoppedError, IllegalStateError, RecordTooLargeError

from worker.assignment import Assignment
from worker.deadlines import Clock
from worker.logs import Throttle
from worker.metrics import PipelineMetrics
from worker.offsets import SUSPECT_ATTEMPT, OffsetTracker, Place
from worker.settings import KafkaSettings
from worker.window import Window

log = structlog.get_logger(__name__)

POLL_S = 0.2  # how long a read waits for records
APART_S = 5.0  # how long partitions are read one by one after an error
APART_POLL_S = 0.02
REST_S = 1.0  # how long a partition rests that could not be read

Records = dict[TopicPartition, list[ConsumerRecord]]
Taken = list[tuple[Place, ConsumerRecord, int | None]]


@dataclass(frozen=True)
class ConsumerHooks:
    """take: a record was read (its place, itself, not_before_ms). announce: commit what was taken.
    may_read: how many records there is room for. revoked, assigned: see Assignment."""

    take: Callable[[Place, ConsumerRecord, int | None], None]
    announce: Callable[[], Awaitable[object]]
    may_read: Callable[[], int]
    revoked: Callable[[], Awaitable[None]]
    assigned: Callable[[], None]


class GroupConsumer:
    """`beat_s` (time.monotonic) moves as long as the reading loop turns."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        tracker: OffsetTracker,
        window: Window,
        clock: Clock,
        metrics: PipelineMetrics,
        hooks: ConsumerHooks,
    ) -> None:
        self._consumer = consumer
        self._tracker = tracker
        self._window = window
        self._clock = clock
        self._metrics = metrics
        self._hooks = hooks
        self._assignment = Assignment(consumer, tracker, metrics, hooks.revoked, hooks.assigned)
        self._seen_empty: dict[TopicPartition, tuple[int, int]] = {}  # (generation, ms on our timeline)
        self._resting: dict[TopicPartition, float] = {}
        self._apart_until_s = 0.0
        self._throttle = Throttle()
        self.beat_s = time.monotonic()

    @property
    def assigned(self) -> bool:
        """Whether the group has given this member its partitions (possibly none)."""
        return self._assignment.complete

    @property
    def coordinated(self) -> bool:
        """Whether the group's coordinator is known: aiokafka forgets one that fails its heartbeats."""
        return self._consumer._coordinator.coordinator_id is not None

    @property
    def lag(self) -> int:
        """Records after what is done, as far as the last fetches told. Other threads must not ask."""
        behind = 0
        for partition, progress in self._tracker.progress().items():
            with suppress(AssertionError):  # aiokafka's word for a partition that has just gone
                behind += max(0, (self._consumer.highwater(partition) or 0) - progress.offset)
        return behind

    async def start(self, topic: str, timeout_s: float) -> None:
        """Join the group; TimeoutError or KafkaError if that cannot be done."""
        self._consumer.subscribe([topic], listener=self._assignment)
        async with asyncio.timeout(timeout_s):
            await self._consumer.start()

    async def run(self) -> None:
        """Read until cancelled or the consumer stops."""
        while True:
            self.beat_s = time.monotonic()
            try:
                await self._assignment.begin_epochs()
                room = self._hooks.may_read()  # only an epoch that has begun says whether the next is suspect
                if room > 0:
                    await self._poll(room)
                else:
                    await self._window.changed(POLL_S)
            except ConsumerStoppedError:
                return
            except Exception as error:  # noqa: BLE001 - whatever aiokafka throws, reading goes on
                self._go_back(error, self._tracker.partitions)
                await asyncio.sleep(APART_POLL_S)

    async def _poll(self, room: int) -> None:
        partitions = self._tracker.partitions
        if not partitions:
            await asyncio.sleep(APART_POLL_S)
        elif time.monotonic() < self._apart_until_s:
            await self._poll_apart(partitions, room)
        else:
            wait_ms = int(POLL_S * 1000)
            records = await self._consumer.getmany(*partitions, timeout_ms=wait_ms, max_records=room)
            await self._hand_over(self._take(records))
            if not records:
                await self._pass_markers()

    async def _poll_apart(self, partitions: frozenset[TopicPartition], room: int) -> None:
        """One partition a read: aiokafka loses what it drained from others when one of them fails. The one
        that failed rests a while."""
        for partition in partitions:
            if time.monotonic() < self._resting.get(partition, 0.0):
                continue
            try:
                taken = self._take(await self._consumer.getmany(partition, max_records=room))
            except ConsumerStoppedError:
                raise
            except Exception as error:  # noqa: BLE001 - as in run
                self._go_back(error, frozenset({partition}))
                self._resting[partition] = time.monotonic() + REST_S
            else:
                await self._hand_over(taken)
            room = self._hooks.may_read()
            if room <= 0:
                return
        await asyncio.sleep(APART_POLL_S)

    def _take(self, records: Records) -> Taken:
        """Without a break for other tasks: until it is taken, only aiokafka's position knows a record."""
        held = self._tracker.partitions
        taken: Taken = []
        for partition, batch in records.items():
            if partition not in held:  # of an assignment whose epoch has not begun: read again
                with suppress(IllegalStateError):
                    self._consumer.seek(partition, batch[0].offset)
                continue
            generation, seen_ms = self._seen_empty.get(partition, (0, 0))
            not_before_ms = seen_ms if generation == self._assignment.generation else None
            for record in batch:
                place = self._tracker.take(partition, record.offset)
                assert place is not None, "held"
                taken.append((place, record, not_before_ms))
        for partition in records.keys() & held if records else held:
            self._see_empty(partition)
        return taken

    async def _hand_over(self, taken: Taken) -> None:
        unannounced = self._assignment.unannounced
        fresh = unannounced & {place.partition for place, *_ in taken}
        if fresh or any(place.attempt >= SUSPECT_ATTEMPT for place, *_ in taken):
            await self._hooks.announce()
            unannounced -= fresh
        for place, record, not_before_ms in taken:
            if self._tracker.current(place):
                self._hooks.take(place, record, not_before_ms)

    def _see_empty(self, partition: TopicPartition) -> None:
        """Remember when the log was last read to its end: what is read later was made later."""
        with suppress(AssertionError):  # as in lag
            end, fetched_ms = (
                self._consumer.highwater(partition),
                self._consumer.last_poll_timestamp(partition),
            )
            if end is not None and fetched_ms is not None and self._tracker.next_offsets()[partition] >= end:
                seen_ms = int(fetched_ms - time.time() * 1000) + self._clock.now_ms()
                self._seen_empty[partition] = (self._assignment.generation, seen_ms)

    async def _pass_markers(self) -> None:
        """Transaction markers and compacted ends are no records, yet count as lag until passed."""
        for partition, offset in self._tracker.next_offsets().items():
            with suppress(AssertionError, IllegalStateError, TimeoutError):
                if offset < (self._consumer.highwater(partition) or 0):
                    async with asyncio.timeout(POLL_S):
                        self._tracker.skip_to(partition, await self._consumer.position(partition))

    def _go_back(self, error: Exception, partitions: frozenset[TopicPartition]) -> None:
        """Read on from where the tracker is: aiokafka may have dropped records it had already counted."""
        self._apart_until_s = time.monotonic() + APART_S
        self._metrics.poll_error(error)
        if (kept := self._throttle.allow(type(error).__name__)) is not None:
            numbers = sorted(each.partition for each in partitions)
            log.warning("reading failed: tried again", partitions=numbers, error=repr(error), kept_back=kept)
        if isinstance(error, RecordTooLargeError):
            return  # aiokafka has stepped over the record that it cannot fetch; going back would loop
        offsets = self._tracker.next_offsets()
        for partition in partitions & offsets.keys():
            with suppress(IllegalStateError):
                self._consumer.seek(partition, offsets[partition])


def make_consumer(connection: dict[str, Any], settings: KafkaSettings, group: str) -> AIOKafkaConsumer:
    """A consumer that commits nothing by itself and understands no payload."""
    return AIOKafkaConsumer(
        **connection,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset=settings.auto_offset_reset,
        isolation_level=settings.isolation_level,
        fetch_max_wait_ms=settings.fetch_max_wait_ms,
        fetch_max_bytes=settings.fetch_max_bytes,
        max_partition_fetch_bytes=settings.partition_fetch_bytes,
        session_timeout_ms=settings.session_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        max_poll_interval_ms=settings.max_poll_interval_ms,
        request_timeout_ms=settings.request_timeout_ms,
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
    )
