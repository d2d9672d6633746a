"""Sends against a real broker: acked, refused at once, or given up in time; a dead sender is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from kafka_service import MakeTopic, create_topic
from tcp_proxy import TcpProxy
from worker.metrics import WorkerMetrics
from worker.publisher import Publisher, RefusedError, UnreachableError
from worker.replies import Outgoing
from worker.settings import ReplySettings

SETTINGS = ReplySettings(timeout_ms=1000, give_up_ms=3000, topic_recheck_ms=300)
Publishing = Callable[..., "asynccontextmanager[Publisher]"]


@asynccontextmanager
async def publishing(
    bootstrap: str, *topics: str, settings: ReplySettings = SETTINGS
) -> AsyncIterator[Publisher]:
    publisher = Publisher({"bootstrap_servers": bootstrap}, settings, WorkerMetrics())
    await publisher.start(frozenset(topics))
    try:
        yield publisher
    finally:
        await publisher.close(2)


def outgoing(topic: str, value: bytes = b"value", partition: int | None = None) -> Outgoing:
    return Outgoing(topic, partition, b"key", value, (("a", b"1"), ("a", None)))


async def values(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition)])
        async with asyncio.timeout(20):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_a_record_is_acked_where_it_was_sent(kafka: str, topics: MakeTopic) -> None:
    topic = await topics(partitions=3)
    async with publishing(kafka, topic) as publisher:
        assert publisher.num_partitions(topic) == 3
        assert publisher.ready
        await asyncio.gather(*(publisher.send(outgoing(topic, b"%d" % n, partition=2)) for n in range(50)))
    assert sorted(await values(kafka, topic, 50, partition=2), key=int) == [b"%d" % n for n in range(50)]


async def test_a_partition_out_of_range_is_refused(kafka: str, topics: MakeTopic) -> None:
    topic = await topics(partitions=2)
    async with publishing(kafka, topic) as publisher:
        with pytest.raises(RefusedError, match="has 2 partitions, not 2") as refused:
            await publisher.send(outgoing(topic, partition=2))
    assert refused.value.reason == "no_partition"


async def test_a_record_over_the_brokers_limit_is_refused_alone(apache_kafka: str, topics: MakeTopic) -> None:
    kafka = apache_kafka
    topic = await topics()
    async with publishing(kafka, topic) as publisher:
        small = [publisher.send(outgoing(topic, b"small")) for _ in range(20)]
        large = publisher.send(outgoing(topic, bytes(2 << 20)))
        results = await asyncio.gather(*small[:10], large, *small[10:], return_exceptions=True)
    refused = [each for each in results if each is not None]
    assert [type(each) for each in refused] == [RefusedError]
    assert refused[0].reason == "too_large"  # type: ignore[union-attr]


async def test_a_record_that_is_too_large_takes_no_neighbour_along(
    apache_kafka: str, topics: MakeTopic
) -> None:
    topic = await topics(configs={"max.message.bytes": "20000"})
    async with publishing(apache_kafka, topic) as publisher:
        for partition in (0, None):
            records = [outgoing(topic, b"%d" % n, partition=partition) for n in range(20)]
            records[7] = outgoing(topic, bytes(30_000), partition=partition)  # all fit one batch of ours
            results = await asyncio.gather(*map(publisher.send, records), return_exceptions=True)
            assert [index for index, each in enumerate(results) if each is not None] == [7]
            assert isinstance(results[7], RefusedError)
            assert results[7].reason == "too_large"
    expected = [b"%d" % n for n in range(20) if n != 7] * 2
    assert sorted(await values(apache_kafka, topic, len(expected))) == sorted(expected)


async def test_a_topic_that_is_not_there_is_refused_at_once_and_found_later(
    kafka: str, topics: MakeTopic
) -> None:
    missing = (await topics()) + ".later"
    async with publishing(kafka, missing) as publisher:
        async with asyncio.timeout(1):  # far under the 40 s that aiokafka would wait
            for _ in range(100):
                with pytest.raises(RefusedError, match="does not exist"):
                    await publisher.send(outgoing(missing))
        assert publisher.num_partitions(missing) is None
        await create_topic(kafka, missing, 1, {})
        await asyncio.sleep(SETTINGS.topic_recheck_ms / 1000)
        await publisher.send(outgoing(missing))
    assert await values(kafka, missing, 1) == [b"value"]


async def test_a_broker_that_swallows_is_given_up_in_time(
    kafka: str, kafka_proxy: TcpProxy, topics: MakeTopic
) -> None:
    topic = await topics()
    settings = ReplySettings(timeout_ms=400, give_up_ms=1500)
    async with publishing(kafka_proxy.address, topic, settings=settings) as publisher:
        await publisher.send(outgoing(topic))
        kafka_proxy.set_mode("swallow")
        async with asyncio.timeout(6):
            with pytest.raises(UnreachableError):
                await publisher.send(outgoing(topic))
        assert not publisher.ready


async def test_a_broker_that_was_away_gets_what_waited(
    kafka: str, kafka_proxy: TcpProxy, topics: MakeTopic
) -> None:
    topic = await topics()
    settings = ReplySettings(timeout_ms=500, give_up_ms=20_000)
    async with publishing(kafka_proxy.address, topic, settings=settings) as publisher:
        await publisher.send(outgoing(topic, b"0"))
        kafka_proxy.set_mode("refuse")
        sends = [asyncio.create_task(publisher.send(outgoing(topic, b"%d" % n))) for n in range(1, 20)]
        await asyncio.sleep(2)
        kafka_proxy.set_mode("pass")
        await asyncio.gather(*sends)
        assert publisher.ready
    assert set(await values(kafka, topic, 20)) == {b"%d" % n for n in range(20)}


async def test_a_dead_sender_is_replaced(kafka: str, topics: MakeTopic) -> None:
    topic = await topics()
    async with publishing(kafka, topic) as publisher:
        await publisher.send(outgoing(topic, b"before"))
        first = publisher._producer
        assert first is not None
        first._sender.sender_task.cancel()  # what a fatal error does to it
        await asyncio.sleep(0.05)
        await asyncio.gather(*(publisher.send(outgoing(topic, b"after")) for _ in range(5)))
        assert publisher._producer is not first
    assert await values(kafka, topic, 6) == [b"before"] + [b"after"] * 5
