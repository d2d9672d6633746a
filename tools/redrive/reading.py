"""Reading dead letter topics without a group: each partition from a start to the end it had at the beginning.

What is dead-lettered while a run goes on, by the run itself perhaps, is not part of it: a run always ends.
Nothing is joined and nothing committed, so that a production group never notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.client.stopping import stop_consumer
from tools.broker_state import Options, end_offsets
from tools.errors import UserError
from tools.redrive.letters import Letter
from tools.redrive.selection import Span

POLL_MS = 500
STALL_POLLS = 60  # 30 s without a record or a step forward: the broker has gone
END_SECONDS = 3.0
MAX_RECORD_BYTES = 64 << 20  # more than any broker takes by default
Counts = dict[str, int]


class StalledError(RuntimeError):
    """Nothing more comes although the end is not reached."""


class LetterReader:
    """Letters in the order of their partition; `ranges` says what is read, [start, end) of each."""

    def __init__(self, consumer: AIOKafkaConsumer, ranges: dict[TopicPartition, tuple[int, int]]) -> None:
        self._consumer = consumer
        self.ranges = ranges

    async def letters(self) -> AsyncGenerator[Letter]:
        """One partition after the other. KafkaError; StalledError."""
        for place, (start, end) in self.ranges.items():
            if start >= end:
                continue
            self._consumer.assign([place])
            self._consumer.seek(place, start)
            idle = 0
            while await self._consumer.position(place) < end:
                before = await self._consumer.position(place)
                fetched = await self._consumer.getmany(place, timeout_ms=POLL_MS, max_records=500)
                for record in fetched.get(place, ()):
                    if record.offset >= end:
                        break
                    yield Letter.of(record)
                idle = idle + 1 if await self._consumer.position(place) == before else 0
                if idle >= STALL_POLLS:
                    raise StalledError(f"nothing more comes from {place.topic}, partition {place.partition}")


@asynccontextmanager
async def open_reader(
    options: Options, topics: Sequence[str], counts: Counts, span: Span
) -> AsyncIterator[LetterReader]:
    """`counts`: partitions of every topic there is. UserError for a topic or partition that is not there."""
    places = choose_places(topics, counts, span)
    consumer = AIOKafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",  # what retention took since the ranges were read
        max_partition_fetch_bytes=MAX_RECORD_BYTES,
        **options,
    )
    await consumer.start()
    try:
        consumer.assign(places)
        first: Any = await consumer.beginning_offsets(places)
        last = await find_ends(consumer, places)
        ranges = {
            place: span.bounds(place.topic, place.partition, first[place], last[place]) for place in places
        }
        yield LetterReader(consumer, ranges)
    finally:
        await stop_consumer(consumer)


async def find_ends(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """As broker_state says, or as the broker says where so much is written that an end is never seen."""
    try:
        async with asyncio.timeout(END_SECONDS):
            return await end_offsets(consumer, places)
    except TimeoutError:
        told: dict[TopicPartition, int] = await consumer.end_offsets(places)
        return told


def choose_places(topics: Sequence[str], counts: Counts, span: Span) -> list[TopicPartition]:
    """The partitions that are read."""
    for topic in topics:
        if topic not in counts:
            close = sorted(each for each in counts if each.endswith("-dlt"))
            known = f"; dead letter topics there: {', '.join(close[:20])}" if close else ""
            raise UserError(f"topic {topic!r} does not exist{known}")
    every = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
    for place in span.named:
        if not any(place.matches(each.topic, each.partition) for each in every):
            shown = f"{place.topic}:{place.partition}" if place.topic else str(place.partition)
            raise UserError(f"partition {shown!r} does not exist in {', '.join(topics)}")
    return [each for each in every if span.includes(each.topic, each.partition)]
