"""What a broker holds, read from outside: topics, and how far a group's commits are behind.

Reads only: no group is joined, nothing is committed, and only topics that exist are asked about (some brokers
create what is asked for). `options` are the connection arguments of every aiokafka client, as
worker.cluster.connection_options makes them. Callers bound the time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from schemas.client.stopping import stop_consumer

Options = Mapping[str, Any]

IDLE_MS = 100  # nothing came for so long
FETCH_WAIT_MS = 20


@dataclass(frozen=True)
class Lag:
    """`committed`: partitions with a commit. `behind`: records after them (from the start where none)."""

    committed: int
    behind: int


async def count_partitions(options: Options) -> dict[str, int]:
    """Topic -> number of its partitions, of all topics."""
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        described = await admin.describe_topics(await admin.list_topics())
        return {each["topic"]: len(each["partitions"]) for each in described}
    finally:
        await admin.close()


async def committed_lag(options: Options, group: str, topic: str, num_partitions: int) -> Lag:
    """Of one group on one topic."""
    partitions = _partitions(topic, num_partitions)
    async with _reader(options, partitions, group) as reader:  # assigned: the group is asked, not joined
        first = await reader.beginning_offsets(partitions)
        last = await end_offsets(reader, partitions)
        committed = {each: await reader.committed(each) for each in partitions}
    starts = {each: first[each] if offset is None else offset for each, offset in committed.items()}
    behind = sum(last[each] - starts[each] for each in partitions)
    return Lag(sum(offset is not None for offset in committed.values()), behind)


async def count_records(options: Options, topics: Sequence[str], num_partitions: int) -> int:
    """Records in these topics from their first to their last offset."""
    partitions = [each for topic in topics for each in _partitions(topic, num_partitions)]
    async with _reader(options, partitions, None) as reader:
        first = await reader.beginning_offsets(partitions)
        last = await end_offsets(reader, partitions)
    return sum(last[each] - first[each] for each in partitions)


async def end_offsets(
    reader: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition, found by reading on from where the broker says.

    The embedded broker (Tansu 0.6) counts only the first record of a partition's last batch. Not seek_to_end:
    aiokafka takes an answer still under way, about the beginning perhaps, for the answer to it. Silence alone
    is no end, since a broker on busy cores may take longer: it must have answered that nothing follows.
    """
    told = await reader.end_offsets(partitions)
    for each in partitions:
        reader.seek(each, told[each])

    def asked() -> list[int | None]:  # when each partition was last answered, from where the reader is
        return [reader.last_poll_timestamp(each) for each in partitions]

    before, answered = asked(), False
    while True:
        if await reader.getmany(timeout_ms=IDLE_MS):
            before, answered = asked(), False
        elif answered:
            return {each: await reader.position(each) for each in partitions}
        else:
            answered = all(now not in (None, then) for now, then in zip(asked(), before, strict=True))


@asynccontextmanager
async def _reader(
    options: Options, partitions: Sequence[TopicPartition], group: str | None
) -> AsyncIterator[AIOKafkaConsumer]:
    reader = AIOKafkaConsumer(
        group_id=group, enable_auto_commit=False, fetch_max_wait_ms=FETCH_WAIT_MS, **options
    )
    try:
        await reader.start()
        reader.assign(partitions)
        yield reader
    finally:
        await stop_consumer(reader)


def _partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
