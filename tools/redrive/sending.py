"""Letters back into their original topics: each acked by all replicas before the next is looked at.

One at a time: order within a partition stays, and where a run stopped is exactly known. A topic is never
created: only those that exist at the start are written to. A send whose answer is lost is repeated by the
producer, so a record can arrive twice, as everywhere in boundgen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    CorruptRecordException,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

from tools.broker_state import Options
from tools.redrive.letters import Letter, redriven_headers
from tools.redrive.reading import MAX_RECORD_BYTES

SEND_SECONDS = 30.0
REFUSALS = (
    CorruptRecordException,  # a compacted topic refuses a record without key
    InvalidTimestampError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)


@dataclass(frozen=True)
class Destination:
    """Where a letter goes; partition None: its topic has fewer now, so its key decides."""

    topic: str
    partition: int | None


class LetterRefusedError(RuntimeError):
    """This one cannot be written to its topic; others may."""


class Sender:
    """Writes letters with one producer."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def send(self, letter: Letter, destination: Destination) -> None:
        """Returns when all replicas have it. LetterRefusedError; KafkaError or TimeoutError: nothing goes."""
        # The producer refuses a record with neither key nor value: as in dead letters, empty stands for none.
        value = b"" if letter.value is None and letter.key is None else letter.value
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._producer.send_and_wait(
                    destination.topic,
                    value,
                    key=letter.key,
                    partition=destination.partition,
                    headers=list(redriven_headers(letter.headers)),
                )
        except REFUSALS as error:
            raise LetterRefusedError(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_sender(options: Options) -> AsyncIterator[Sender]:
    """A sender over a producer of its own."""
    producer = AIOKafkaProducer(acks="all", linger_ms=0, max_request_size=MAX_RECORD_BYTES, **options)
    await producer.start()
    try:
        yield Sender(producer)
    finally:
        await producer.stop()
