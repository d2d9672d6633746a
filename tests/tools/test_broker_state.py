"""Ends, counts and lag as they are, also where a broker's own answer about the end is too small."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher, OffsetResetStrategy

from tools.broker_state import Lag, committed_lag, count_partitions, count_records, end_offsets
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


async def test_a_broker_that_is_slow_to_answer_has_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On busy cores a fetch takes longer than any silence that we would wait for."""
    fetch = Fetcher._proc_fetch_request

    async def slowly(self: Fetcher, *request: object) -> object:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:  # closed meanwhile: as fetch itself ends then
            return False
        return await fetch(self, *request)

    with embedded_broker(tmp_path) as bootstrap:
        await create_topics(bootstrap, {"requests": 2})
        await send_batches(bootstrap, "requests", 1, 5)
        await commit(bootstrap, "requests", "group", 6)
        monkeypatch.setattr(Fetcher, "_proc_fetch_request", slowly)
        options = {"bootstrap_servers": bootstrap}
        assert await count_records(options, ["requests"], 2) == 6
        assert await committed_lag(options, "group", "requests", 2) == Lag(committed=1, behind=0)


async def test_the_end_is_not_taken_for_the_beginning(kafka, topics, monkeypatch: pytest.MonkeyPatch):
    """A consumer that was just told to begin at the beginning, on a broker that is slow."""
    topic = await topics(partitions=1)
    await send_batches(kafka, topic, 1, 1, 1)
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest") as reader:
        ask = reader._fetcher._proc_offset_request

        async def slowly(node: int, asked: dict[str, list[tuple[int, int]]]) -> object:
            answer = await ask(node, asked)
            await asyncio.sleep(0.3 if (0, OffsetResetStrategy.EARLIEST) in asked[topic] else 0)
            return answer

        async def nothing_yet(**bounds: int) -> dict[TopicPartition, object]:
            await asyncio.sleep(0.05)
            return {}

        monkeypatch.setattr(reader._fetcher, "_proc_offset_request", slowly)
        monkeypatch.setattr(reader, "getmany", nothing_yet)
        reader.assign([place])
        await asyncio.sleep(0.1)  # the question about the beginning is on its way
        assert await end_offsets(reader, [place]) == {place: 3}


async def test_creating_twice_is_fine(kafka, topics):
    topic = await topics(partitions=2)
    await create_topics(kafka, {topic: 2})


async def test_a_topic_that_the_broker_refuses_is_an_error_of_the_user(apache_kafka: str):
    with pytest.raises(UserError, match=r"topic 'not a name' cannot be created: InvalidTopicError"):
        await create_topics(apache_kafka, {"not a name": 1})


async def test_no_broker_is_an_error_of_the_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tools.demo.topics.READY_SECONDS", 1.0)
    with pytest.raises(UserError, match=r"--bootstrap-servers = '127\.0\.0\.1:9'"):
        await create_topics("127.0.0.1:9", {"x": 1})
