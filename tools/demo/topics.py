"""The demo's topics: created before the worker starts, and the leaders waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code

from tools.errors import UserError

READY_SECONDS = 30.0
POLL_SECONDS = 0.1


async def create_topics(servers: str, partitions: Mapping[str, int]) -> None:
    """Create what is missing (topic -> partitions) and return when every partition has a leader."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            await _create(servers, partitions)
    except (KafkaError, OSError, TimeoutError) as error:
        said = f"no answer in {READY_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
        raise UserError(f"--bootstrap-servers = {servers!r}: {said}; is a broker there?") from error


async def _create(servers: str, partitions: Mapping[str, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    try:
        await admin.start()
        missing = set(partitions) - set(await admin.list_topics())
        if missing:
            wanted = [NewTopic(topic, partitions[topic], 1) for topic in sorted(missing)]
            for topic, code, *said in (await admin.create_topics(wanted)).topic_errors:
                if code not in (NoError.errno, TopicAlreadyExistsError.errno):
                    raise UserError(f"topic {topic!r} cannot be created: {for_code(code).__name__} {said}")
        while not all(map(_has_leaders, await admin.describe_topics(list(partitions)))):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    finally:
        await admin.close()


def _has_leaders(topic: Mapping[str, Any]) -> bool:
    """Whether every partition of a described topic can be written to."""
    found = topic["partitions"]
    return topic["error_code"] == 0 and bool(found) and all(each["leader"] >= 0 for each in found)
