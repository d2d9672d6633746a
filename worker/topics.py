"""Whether the topics that a worker needs exist, before it joins any group.

Asked with a list of all topics: asking by name would create a missing one on brokers that auto-create.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from worker.settings import KafkaSettings

log = structlog.get_logger(__name__)

RETRY_S = 1.0


class TopicsMissingError(RuntimeError):
    """Topics that the worker reads are not there."""


async def ensure_topics(
    connection: dict[str, Any], settings: KafkaSettings, required: frozenset[str], useful: frozenset[str]
) -> None:
    """Return when all `required` topics exist, made here if `create_topics` says so (`useful` ones too).

    TopicsMissingError after `start_timeout_ms`; KafkaError if the cluster cannot be reached at all by then.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + settings.start_timeout_ms / 1000
    while True:
        try:
            async with asyncio.timeout_at(give_up_s):
                missing = (required | useful) - await _existing(connection)
                if missing and settings.create_topics:
                    await _create(connection, settings, missing)
                    missing = (required | useful) - await _existing(connection)
        except (KafkaError, OSError) as error:
            if loop.time() + RETRY_S > give_up_s:
                where = f"kafka.bootstrap_servers = {settings.bootstrap_servers!r}"
                raise KafkaConnectionError(f"{where}: {error or 'no answer'}") from error
            log.warning("no cluster yet: waiting", servers=settings.bootstrap_servers, error=repr(error))
        else:
            if not missing & required:
                return
            names = sorted(missing & required)
            if loop.time() + RETRY_S > give_up_s:
                raise TopicsMissingError(
                    f"topics {names} do not exist at {settings.bootstrap_servers}: "
                    "create them, or set kafka.create_topics"
                )
            log.warning("topics do not exist: waiting for someone to create them", topics=names)
        await asyncio.sleep(RETRY_S)


async def _existing(connection: dict[str, Any]) -> frozenset[str]:
    admin = AIOKafkaAdminClient(**connection)
    try:
        await admin.start()
        return frozenset(await admin.list_topics())
    finally:
        await admin.close()


async def _create(connection: dict[str, Any], settings: KafkaSettings, names: frozenset[str]) -> None:
    admin = AIOKafkaAdminClient(**connection)
    topics = [NewTopic(name, settings.topic_partitions, settings.topic_replication) for name in sorted(names)]
    try:
        await admin.start()
        response = await admin.create_topics(topics)
    finally:
        await admin.close()
    for name, code, *details in response.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise KafkaError(f"topic {name!r} could not be created: {error.__name__} {details}")
    log.info("topics created", topics=sorted(names))
