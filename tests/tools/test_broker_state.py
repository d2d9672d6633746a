"""Ends, counts and lag as they are, also where a broker's own answer about the end is too small."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tools.broker_state import Lag, committed_lag, count_partitions, count_records
from tools.demo.servers import embedded_broker
from tools.demo.topics import create_topics
from tools.errors import UserError


async def send_batches(bootstrap: str, topic: str, *sizes: int) -> None:
    """One produce batch of each size into partition 0."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for size in sizes:
            batch = producer.create_batch()
            for _ in range(size):
                batch.append(key=None, value=b"x", timestamp=None)
            await (await producer.send_batch(batch, topic, partition=0))


async def commit(bootstrap: str, topic: str, group: str, offset: int) -> None:
    options = {"bootstrap_servers": bootstrap, "group_id": group, "enable_auto_commit": False}
    async with AIOKafkaConsumer(**options) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.commit({TopicPartition(topic, 0): offset})


async def check(bootstrap: str, topic: str) -> None:
    options = {"bootstrap_servers": bootstrap}
    assert await count_records(options, [topic], 2) == 0
    await send_batches(bootstrap, topic, 1, 5)
    assert await count_records(options, [topic], 2) == 6
    assert await committed_lag(options, "nobody", topic, 2) == Lag(committed=0, behind=6)
    await commit(bootstrap, topic, f"{topic}.group", 2)
    assert await committed_lag(options, f"{topic}.group", topic, 2) == Lag(committed=1, behind=4)
    await commit(bootstrap, topic, f"{topic}.group", 6)
    assert (await committed_lag(options, f"{topic}.group", topic, 2)).behind == 0
    assert (await count_partitions(options))[topic] == 2


async def test_a_real_broker(kafka, topics):
    await check(kafka, await topics(partitions=2))


async def test_the_embedded_broker(tmp_path: Path):
    with embedded_broker(tmp_path) as bootstrap:
        await create_topics(bootstrap, {"requests": 2})
        await check(bootstrap, "requests")


async def test_creating_twice_is_fine(kafka, topics):
    topic = await topics(partitions=2)
    await create_topics(kafka, {topic: 2})


async def test_a_topic_that_the_broker_refuses_is_an_error_of_the_user(kafka):
    with pytest.raises(UserError, match=r"topic 'not a name' cannot be created: InvalidTopicError"):
        await create_topics(kafka, {"not a name": 1})


async def test_no_broker_is_an_error_of_the_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tools.demo.topics.READY_SECONDS", 1.0)
    with pytest.raises(UserError, match=r"--bootstrap-servers = '127\.0\.0\.1:9'"):
        await create_topics("127.0.0.1:9", {"x": 1})
