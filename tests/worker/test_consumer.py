"""Reading with a real consumer: a failing read skips nothing, and nothing waits behind a bad partition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from kafka_service import MakeTopic
from worker.commits import Committer
from worker.consumer import ConsumerHooks, GroupConsumer, make_consumer
from worker.deadlines import Clock
from worker.metrics import PipelineMetrics, WorkerMetrics
from worker.offsets import OffsetTracker, Place
from worker.settings import KafkaSettings
from worker.window import Window


class Reading:
    """A group consumer whose records are done as soon as they are taken."""

    def __init__(self, consumer: AIOKafkaConsumer, metrics: WorkerMetrics) -> None:
        self.consumer = consumer
        self.tracker = OffsetTracker()
        self.taken: dict[int, list[bytes]] = defaultdict(list)
        self.not_before: dict[int, list[int | None]] = defaultdict(list)
        self.room = 1000
        bound = PipelineMetrics(metrics, "p")
        self.committer = Committer(consumer, self.tracker, bound, interval_ms=50, timeout_ms=2000)
        hooks = ConsumerHooks(
            self._take, self.committer.commit, lambda: self.room, self._revoked, lambda: None
        )
        window = Window(1000, 1 << 20)
        self.clock = Clock()
        self.reader = GroupConsumer(consumer, self.tracker, window, self.clock, bound, hooks)
        self.attempts: list[int] = []

    def _take(self, place: Place, record: ConsumerRecord, not_before_ms: int | None) -> None:
        self.taken[record.partition].append(record.value)
        self.not_before[record.partition].append(not_before_ms)
        self.attempts.append(place.attempt)
        self.tracker.done(place)

    async def _revoked(self) -> None:
        await self.committer.commit()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while sum(map(len, self.taken.values())) < count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def reading(
    bootstrap: str, topic: str, consumer: AIOKafkaConsumer | None = None
) -> AsyncIterator[Reading]:
    connection = {"bootstrap_servers": bootstrap}
    consumer = consumer or make_consumer(connection, KafkaSettings(), f"{topic}.group")
    found = Reading(consumer, WorkerMetrics())
    await found.reader.start(topic, 20)
    task = asyncio.create_task(found.reader.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.stop()


@asynccontextmanager
async def producing(bootstrap: str, transactional_id: str | None = None) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


class Poison:
    """A deserializer that fails on one value, so many times: what a broken batch does to aiokafka."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, value: bytes) -> bytes:
        if value == b"poison" and self.left:
            self.left -= 1
            raise ValueError("cannot be read")
        return value


def poisoned_consumer(bootstrap: str, topic: str, times: int) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=f"{topic}.group",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        value_deserializer=Poison(times),
    )


async def test_a_read_that_fails_skips_and_repeats_nothing(kafka: str, topics: MakeTopic) -> None:
    topic = await topics(partitions=4)
    expected = {number: [b"%d-%d" % (number, n) for n in range(50)] for number in range(4)}
    expected[2][25] = b"poison"
    async with producing(kafka) as producer:
        for number, values in expected.items():
            for value in values:
                await producer.send(topic, value, partition=number)
    async with reading(kafka, topic, poisoned_consumer(kafka, topic, times=7)) as found:
        await found.until(200)
        await asyncio.sleep(0.5)
        assert dict(found.taken) == expected


async def test_a_partition_that_cannot_be_read_holds_up_no_other(kafka: str, topics: MakeTopic) -> None:
    topic = await topics(partitions=2)
    async with producing(kafka) as producer:
        await producer.send_and_wait(topic, b"poison", partition=0)
        async with reading(kafka, topic, poisoned_consumer(kafka, topic, times=10**9)) as found:
            for number in range(100):
                await producer.send_and_wait(topic, b"%d" % number, partition=1)
            await found.until(100)
            assert found.taken == {1: [b"%d" % number for number in range(100)]}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_records_are_read(codec: str, apache_kafka: str, topics: MakeTopic) -> None:
    topic = await topics()
    producer = AIOKafkaProducer(bootstrap_servers=apache_kafka, compression_type=codec)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"x" * 1000)
    finally:
        await producer.stop()
    async with reading(apache_kafka, topic) as found:
        await found.until(1)
        assert found.taken == {0: [b"x" * 1000]}


async def test_nothing_is_read_while_there_is_no_room(kafka: str, topics: MakeTopic) -> None:
    topic = await topics()
    async with producing(kafka) as producer, reading(kafka, topic) as found:
        found.room = 0
        await producer.send_and_wait(topic, b"1")
        await asyncio.sleep(1)
        assert not found.taken
        found.room = 10
        await found.until(1)


async def test_transaction_markers_leave_no_lag_and_aborted_requests_are_not_read(
    apache_kafka: str, topics: MakeTopic
) -> None:
    topic = await topics()
    partition = TopicPartition(topic, 0)
    async with producing(apache_kafka, f"{topic}.tx") as producer, reading(apache_kafka, topic) as found:
        async with producer.transaction():
            await producer.send(topic, b"kept")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.abort_transaction()
        await found.until(1)
        end = (await found.consumer.end_offsets([partition]))[partition]
        async with asyncio.timeout(10):
            while await found.consumer.committed(partition) != end:
                await found.committer.commit()
                await asyncio.sleep(0.05)
        assert found.taken == {0: [b"kept"]}


async def test_a_record_read_later_was_made_later_than_the_log_was_empty(
    kafka: str, topics: MakeTopic
) -> None:
    topic = await topics()
    async with producing(kafka) as producer, reading(kafka, topic) as found:
        await producer.send_and_wait(topic, b"1")
        await found.until(1)
        await asyncio.sleep(1.2)  # two empty fetches
        before_ms = found.clock.now_ms()
        await producer.send_and_wait(topic, b"2")
        await found.until(2)
    first, second = found.not_before[0]
    assert first is None or first <= before_ms
    assert second is not None
    assert before_ms - 1500 <= second <= before_ms


async def test_a_second_owner_knows_what_the_first_was_in_the_middle_of(
    apache_kafka: str, topics: MakeTopic
) -> None:
    kafka = apache_kafka
    topic = await topics()
    async with producing(kafka) as producer:
        for number in range(4):
            await producer.send_and_wait(topic, b"%d" % number)
        async with reading(kafka, topic) as first:
            first.tracker.done = lambda place: None  # type: ignore[method-assign] # all stays in flight
            await first.until(1)  # announced before it was handed over, without any commit of ours
        async with reading(kafka, topic) as second:
            await second.until(4)
            await producer.send_and_wait(topic, b"4")
            await second.until(5)
            assert second.attempts == [2, 2, 2, 2, 1]
            assert second.taken == {0: [b"%d" % number for number in range(5)]}
