"""Topics are made only where the configuration says so, and their absence is told."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from aiokafka.errors import KafkaError

from tools.broker_state import count_partitions
from worker.settings import KafkaSettings
from worker.topics import TopicsMissingError, ensure_topics


def names(count: int) -> frozenset[str]:
    return frozenset(f"test.ensure.{uuid.uuid4().hex[:10]}" for _ in range(count))


async def test_missing_topics_are_made_when_told(kafka: str) -> None:
    required, useful = names(2), names(1)
    connection = {"bootstrap_servers": kafka}
    settings = KafkaSettings(create_topics=True, topic_partitions=3)
    await asyncio.gather(*(ensure_topics(connection, settings, required, useful) for _ in range(2)))
    partitions = await count_partitions(connection)
    assert {partitions[name] for name in required | useful} == {3}
    await ensure_topics(connection, KafkaSettings(), required, useful)


async def test_missing_topics_are_an_error_otherwise_and_stay_missing(kafka: str) -> None:
    required = names(1)
    connection = {"bootstrap_servers": kafka}
    with pytest.raises(
        TopicsMissingError, match=f"'{next(iter(required))}'.*create them, or set kafka.create"
    ):
        await ensure_topics(connection, KafkaSettings(start_timeout_ms=1500), required, frozenset())
    assert not required & set(await count_partitions(connection))


async def test_topics_that_would_only_be_useful_hold_up_nothing(kafka: str) -> None:
    await ensure_topics({"bootstrap_servers": kafka}, KafkaSettings(), frozenset(), names(1))


async def test_no_cluster_is_an_error_in_time() -> None:
    connection = {"bootstrap_servers": "127.0.0.1:1"}
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1"):
        await ensure_topics(connection, KafkaSettings(start_timeout_ms=1500), names(1), frozenset())
