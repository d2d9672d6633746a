"""Raw records get their own replies, on a real broker and on the embedded one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.codec import encode_reply
from schemas.headers import parse_headers
from schemas.messages import Outcome, Reply
from tools.demo.raw_sender import RawSender
from tools.demo.servers import embedded_broker
from tools.demo.topics import create_topics


async def answer_all(bootstrap: str, topic: str, count: int) -> None:
    """Reply to `count` records with their own value as the id, the last one first."""
    options = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 5}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        async with AIOKafkaConsumer(topic, **options) as consumer:
            records = [await consumer.getone() for _ in range(count)]
        for record in reversed(records):
            address = parse_headers(record.headers)
            reply = Reply(id=record.value.decode(), outcome=Outcome.INVALID)
            await producer.send_and_wait(address.topic, encode_reply(reply), headers=list(address.echo))


async def check(bootstrap: str, requests: str, replies: str) -> None:
    answering = asyncio.create_task(answer_all(bootstrap, requests, 3))
    async with asyncio.timeout(60), RawSender(bootstrap, replies, 5) as raw:
        sent = [raw.send(requests, name.encode(), 60) for name in ("a", "b", "c")]
        assert [reply.id for reply in await asyncio.gather(*sent)] == ["a", "b", "c"]
        await answering
        with pytest.raises(TimeoutError):
            await raw.send(requests, b"nobody answers", 0.2)


async def test_a_real_broker(kafka, topics):
    await check(
        kafka, await topics(partitions=2, name="requests"), await topics(partitions=2, name="replies")
    )


async def test_the_embedded_broker(tmp_path: Path):
    with embedded_broker(tmp_path) as bootstrap:
        await create_topics(bootstrap, {"requests": 2, "replies": 2})
        await check(bootstrap, "requests", "replies")
