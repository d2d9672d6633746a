"""What a broker holds, read from outside: topics, and how far a group's commits are behind.

Reads only: no group is joined, nothing is committed, and only topics that exist are asked about (some brokers
create what is asked for). `options` are the connection arguments of every aiokafka client, as
worker.cluster.connection_options makes them. Callers bound the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

Options = Mapping[str, Any]


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
    reader = AIOKafkaConsumer(group_id=group, enable_auto_commit=False, **options)
    try:
        await reader.start()
        reader.assign(partitions)  # instead of subscribing: the group is asked, not joined
        first = await reader.beginning_offsets(partitions)
        last = await reader.end_offsets(partitions)
        committed = {each: await reader.committed(each) for each in partitions}
    finally:
        await reader.stop()
    behind = sum(last[each] - (first[each] if committed[each] is None else committed[each]) for each in last)
    return Lag(sum(offset is not None for offset in committed.values()), behind)


async def count_records(options: Options, topics: Sequence[str], num_partitions: int) -> int:
    """Records in these topics from their first to their last offset."""
    partitions = [each for topic in topics for each in _partitions(topic, num_partitions)]
    reader = AIOKafkaConsumer(enable_auto_commit=False, **options)
    try:
        await reader.start()
        reader.assign(partitions)
        first = await reader.beginning_offsets(partitions)
        last = await reader.end_offsets(partitions)
    finally:
        await reader.stop()
    return sum(last[each] - first[each] for each in partitions)


def _partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
