"""A tiny worker: it reads a request topic with the codec and replies as a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord

from schemas.client import ClientSettings
from schemas.codec import decode_request, encode_reply
from schemas.headers import parse_headers
from schemas.messages import ModelInfo, Outcome, Reply, Request, Usage

Answer = Callable[[Request], list[Reply | bytes]]


def echo(request: Request) -> list[Reply | bytes]:
    """One ok reply whose rows hold the samples' own text."""
    rows = tuple(
        {"id": row_id, "text": sample.text, "fields": sample.fields}
        for row_id, sample in zip(request.row_ids(), request.samples, strict=True)
    )
    usage = Usage(samples=len(rows), tokens=0)
    return [
        Reply(
            id=request.id,
            outcome=Outcome.OK,
            results=rows,
            usage=usage,
            model=ModelInfo(name="m", digest="d"),
        )
    ]


@dataclass
class Responder:
    """What arrived, and how it is answered."""

    producer: AIOKafkaProducer
    answer: Answer = echo
    requests: list[Request] = field(default_factory=list)
    records: list[ConsumerRecord] = field(default_factory=list)
    reply_partition: int | None = None

    async def run(self, consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            request = decode_request(record.value)
            self.requests.append(request)
            self.records.append(record)
            address = parse_headers(record.headers)
            if address.topic is None:
                continue
            partition = self.reply_partition if address.partition is None else address.partition
            for reply in self.answer(request):
                value = reply if isinstance(reply, bytes) else encode_reply(reply)
                await self.producer.send_and_wait(
                    address.topic, value, headers=list(address.echo), partition=partition
                )

    async def wait_partitions(self, topic: str, count: int) -> None:
        """Until the responder can reply to that many partitions of `topic`."""
        async with asyncio.timeout(60):
            while len(await self.producer.partitions_for(topic)) < count:
                await asyncio.sleep(0.05)


@pytest.fixture
def responder(kafka: str) -> Callable[[str], AbstractAsyncContextManager[Responder]]:
    """`async with responder(topic) as worker`: answers every request of the topic until the block ends."""

    @asynccontextmanager
    async def serve(topic: str) -> AsyncIterator[Responder]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=kafka, auto_offset_reset="earliest", fetch_max_wait_ms=20
        )
        async with (
            consumer,
            AIOKafkaProducer(bootstrap_servers=kafka, acks="all", metadata_max_age_ms=300) as producer,
        ):
            worker = Responder(producer)
            task = asyncio.create_task(worker.run(consumer))
            try:
                yield worker
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    return serve


@pytest.fixture
def patient() -> ClientSettings:
    """Long waits, so that a busy machine fails no test; short where it only costs time."""
    return ClientSettings(grace_ms=30_000, redis_timeout_ms=2000, fetch_max_wait_ms=20, topic_refresh_ms=300)
