"""The demo's topics: created before the worker starts, and the leaders waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from tools.errors import UserError

READY_SECONDS = 30.0


async def create_topics(servers: str, partitions: Mapping[str, int]) -> None:
    """Create what is missing (topic -> partitions) and return when a leader answers for each partition."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            await _create(servers, partitions)
            await _wait_for_leaders(servers, partitions)
    except (KafkaError, OSError, TimeoutError) as error:
        said = f"no answer in {READY_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
        raise UserError(f"--bootstrap-servers = {servers!r}: {said}; is a broker there?") from error


async def _create(servers: str, partitions: Mapping[str, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    try:
        await admin.start()
        missing = set(partitions) - set(await admin.list_topics())
        if missing:
            await admin.create_topics([NewTopic(topic, partitions[topic], 1) for topic in sorted(missing)])
    finally:
        await admin.close()


async def _wait_for_leaders(servers: str, partitions: Mapping[str, int]) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    try:
        await consumer.start()
        for topic, count in partitions.items():
            while len(consumer.partitions_for_topic(topic) or ()) < count:
                await consumer.topics()
            await consumer.end_offsets([TopicPartition(topic, number) for number in range(count)])
    finally:
        await consumer.stop()
