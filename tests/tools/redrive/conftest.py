"""Fixture `post`: a request topic, its dead letter topic, and `boundgen redrive` over them, in here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from typer.testing import CliRunner

from kafka_service import create_topic, unique_topic
from schemas.deadletter import dead_letter_headers, dead_letter_topic
from schemas.headers import Header
from tools.cli import app


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its JSON line, the lines of --list, and all that it said."""

    status: int
    summary: dict[str, Any]
    listed: list[dict[str, Any]]
    told: str


@dataclass(frozen=True)
class Post:
    """One request topic and its dead letters; `partitions` of each."""

    bootstrap: str
    topic: str
    partitions: int

    @property
    def dead_letters(self) -> str:
        return dead_letter_topic(self.topic)

    async def bury(
        self, value: bytes | None, headers: Sequence[Header] = (), *, key: bytes | None = None, **changes: Any
    ) -> None:
        """A dead letter as a worker writes it; `changes` are arguments of dead_letter_headers."""
        facts: dict[str, Any] = {
            "topic": self.topic,
            "partition": 0,
            "offset": 7,
            "timestamp_ms": 1_700_000_000_000,
            "group": "boundgen",
            "exception_class": "boundgen.MalformedRequest",
            "message": "v: missing",
            **changes,
        }
        await self.send(
            value,
            dead_letter_headers(headers, **facts),
            key=key,
            partition=facts["partition"] % self.partitions,
        )

    async def send(self, value: bytes | None, headers: Sequence[Header], **place: Any) -> None:
        """Any record into the dead letter topic."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all") as producer:
            await producer.send_and_wait(self.dead_letters, value, headers=list(headers), **place)

    async def records(self, topic: str | None = None) -> list[ConsumerRecord]:
        """All records of the request topic (or another), in partition order."""
        name = topic or self.topic
        places = [TopicPartition(name, number) for number in range(self.partitions)]
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(places)
            end = await consumer.end_offsets(places)
            found: list[ConsumerRecord] = []
            while len(found) < sum(end.values()):
                fetched = await consumer.getmany(timeout_ms=1000)
                found += [record for records in fetched.values() for record in records]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def redrive(self, *arguments: str, cluster: bool = True) -> Outcome:
        """The command, over the dead letter topic unless another cluster or topic is named."""
        where = (self.dead_letters, "--bootstrap-servers", self.bootstrap) if cluster else ()
        command = ["redrive", *where, *arguments, "--json"]
        found = await asyncio.to_thread(CliRunner().invoke, app, command)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        *listed, last = [json.loads(line) for line in found.stdout.splitlines()] or [{}]
        return Outcome(found.exit_code, last, listed, found.stderr)


MakePost = Callable[..., Awaitable[Post]]


@pytest.fixture
def posts(kafka: str) -> MakePost:
    """`await posts(partitions=2)`"""

    async def make(partitions: int = 1) -> Post:
        post = Post(kafka, unique_topic("redrive"), partitions)
        await create_topic(kafka, post.topic, partitions, {})
        await create_topic(kafka, post.dead_letters, partitions, {})
        return post

    return make
