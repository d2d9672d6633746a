"""The reply consumer: every record of the reply topic from before our first request on.

All partitions are assigned by hand, without a group: no rebalance can take a reply from us, and the place to
read on from is kept here, so that a moved leader, an added partition or a broken consumer costs time but no
reply. With `group` the partitions are subscribed to instead, for brokers whose rules ask for a group. The
group must be this client's alone: a second member would be given partitions whose replies are ours. Should
one join all the same, what it was given is read from our own place on once it has left; nothing is committed.

Contract: event loop only; `deliver` is called there, must not block, and sees a record at least once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from schemas.client.errors import ClientError, UnknownTopicError
from schemas.client.stopping import stop_consumer
from schemas.headers import FASTSTREAM_CORRELATION, SPRING_CORRELATION

_TURN_MS = 500  # how long a read may wait before partitions and health are looked at
_POLL_S = 0.02  # between looks at metadata that has no event of its own
_TOPIC_S = 5.0  # how long a topic created just now may take to be known
_BACKOFF_S = 0.2
_STUCK_S = 20.0  # an operation of the consumer that takes longer has hung
_REBUILD_S = 10.0  # at most one rebuild on mere suspicion in this time

logger = logging.getLogger(__name__)


class ReplyReader(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """Reads one topic and hands correlation id and value of each record to `deliver`."""

    def __init__(
        self,
        topic: str,
        deliver: Callable[[bytes, bytes], None],
        consumer_options: Mapping[str, Any],
        *,
        group: str | None = None,
        partition: int | None = None,
    ) -> None:
        self.rebuilds = 0  # consumers replaced
        self._topic = topic
        self._deliver = deliver
        self._options = {**consumer_options, "group_id": group, "enable_auto_commit": False}
        # Places are always sought; where the log no longer has one, reading goes on with the oldest record.
        self._options["auto_offset_reset"] = "earliest"
        self._group = group
        self._only = partition
        self._positions: dict[int, int] = {}  # the next offset of each partition; never forgotten
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_record = self._last_rebuild = time.monotonic()
        self._suspected = False

    async def start(self) -> None:
        """Stand at the end of every partition; requests may be sent once this returns. Raises
        UnknownTopicError, ClientError or KafkaError."""
        self._consumer = await self._open()
        ends = await self._consumer.end_offsets(self._assigned())
        self._positions = {place.partition: offset for place, offset in ends.items()}
        self._seek(self._consumer)
        self._task = asyncio.create_task(self._run(), name="replies")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop()

    def suspect(self, since: float) -> None:
        """A reply is overdue that was asked for at `since` (monotonic). Where nothing at all came since then,
        the consumer itself may have died silently: it is replaced, once in a while."""
        quiet = self._last_record < since
        self._suspected = quiet and time.monotonic() - self._last_rebuild > _REBUILD_S

    async def on_partitions_revoked(self, revoked: object) -> None:
        """Nothing to do: places are kept."""

    async def on_partitions_assigned(self, assigned: object) -> None:
        """Go on from our own places, whatever the group has committed."""
        if self._consumer is not None and self._positions:
            self._seek(self._consumer)

    async def _open(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**self._options)
        try:
            await consumer.start()
            await self._wait_topic(consumer)
            if self._group is not None:
                consumer.subscribe([self._topic], listener=self)
                while not consumer.assignment():  # noqa: ASYNC110 - aiokafka has no event for it
                    await asyncio.sleep(_POLL_S)
            else:
                consumer.assign([TopicPartition(self._topic, self._only or 0)])  # makes it fetch the metadata
                while not consumer.partitions_for_topic(self._topic):  # noqa: ASYNC110 - the same
                    await asyncio.sleep(_POLL_S)
                consumer.assign(self._wanted(consumer))
        except BaseException:  # also a cancelled start must not leak connections
            await stop_consumer(consumer, _STUCK_S)
            raise
        return consumer

    async def _wait_topic(self, consumer: AIOKafkaConsumer) -> None:
        patience = time.monotonic() + _TOPIC_S
        while self._topic not in await consumer.topics():  # all of them: asking for one could create it
            if time.monotonic() > patience:
                raise UnknownTopicError(self._topic)
            await asyncio.sleep(_POLL_S * 5)

    def _wanted(self, consumer: AIOKafkaConsumer) -> list[TopicPartition]:
        """What the metadata name just now; nothing while the topic is between two states."""
        known = consumer.partitions_for_topic(self._topic) or set()
        if known and self._only is not None and self._only not in known:
            text = f"{self._topic!r} has only {len(known)} partitions"
            raise ClientError(f"reply_partition = {self._only}: {text}")
        return [
            TopicPartition(self._topic, number) for number in sorted(known) if self._only in (None, number)
        ]

    def _assigned(self) -> list[TopicPartition]:
        assert self._consumer is not None
        return sorted(self._consumer.assignment())

    def _seek(self, consumer: AIOKafkaConsumer) -> None:
        """Go to our own places. A partition without one was added after we started: all of it is news."""
        for place in consumer.assignment():
            consumer.seek(place, self._positions.setdefault(place.partition, 0))

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self._suspected:
                    await self._stop()
                if self._consumer is None:
                    await self._replace()
                elif failures:
                    self._seek(self._consumer)  # records drained beside the failing partition are read again
                await self._read()
                failures = 0
            except Exception as error:  # noqa: BLE001 - the boundary to aiokafka, which raises of everything
                # One failure means reading again from our places, two in a row a new consumer; it is tried
                # for ever, because without replies every request would time out.
                failures += 1
                logger.warning("reply consumer of %s failed (%d in a row): %r", self._topic, failures, error)
                if failures > 1:
                    await self._stop()
                await asyncio.sleep(_BACKOFF_S)

    async def _read(self) -> None:
        """One turn."""
        assert self._consumer is not None
        async with asyncio.timeout(_STUCK_S):  # in a rebalance getmany waits without an end
            batches = await self._consumer.getmany(timeout_ms=_TURN_MS)
        for place, records in batches.items():
            for record in records:
                self._positions[place.partition] = record.offset + 1
                self._hand_over(record.headers, record.value)
        if self._group is None:
            wanted = self._wanted(self._consumer)
            if wanted and set(wanted) - self._consumer.assignment():
                self._consumer.assign(wanted)
                self._seek(self._consumer)

    def _hand_over(self, headers: tuple[tuple[str, bytes | None], ...], value: bytes | None) -> None:
        self._last_record = time.monotonic()
        for name, correlation_id in headers:
            if name in (SPRING_CORRELATION, FASTSTREAM_CORRELATION) and correlation_id is not None:
                self._deliver(correlation_id, value or b"")

    async def _replace(self) -> None:
        async with asyncio.timeout(_STUCK_S):
            self._consumer = await self._open()
        self._seek(self._consumer)
        self.rebuilds += 1
        self._suspected = False
        self._last_rebuild = time.monotonic()

    async def _stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer, _STUCK_S)
