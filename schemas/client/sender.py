"""The request producer: acknowledged by all replicas, no lingering, every wait bounded.

It is not idempotent: an idempotent aiokafka producer never gives up a batch, and a request may come twice
anyway. Contract: event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from schemas.client.errors import SendError, UnknownTopicError
from schemas.headers import Header

_BATCH_BYTES = 64 << 10  # a batch over the broker's limit fails whole, so keep them far below its 1 MiB

logger = logging.getLogger(__name__)


class RequestSender:
    """Sends records; replaces its producer when that has died."""

    def __init__(self, producer_options: Mapping[str, Any], timeout_s: float) -> None:
        self.rebuilds = 0
        self._timeout_s = timeout_s
        self._options = {
            **producer_options,
            "acks": "all",
            "linger_ms": 0,
            "enable_idempotence": False,
            "max_batch_size": _BATCH_BYTES,
            "request_timeout_ms": round(timeout_s * 1000),
        }
        self._producer: AIOKafkaProducer | None = None
        self._topics: set[str] = set()
        self._rebuilding = asyncio.Lock()

    async def start(self) -> None:
        """Raises KafkaError where no broker answers."""
        producer = AIOKafkaProducer(**self._options)
        try:
            await producer.start()
        except BaseException:  # also a cancelled start must not leak connections
            await producer.stop()
            raise
        self._producer = producer

    async def close(self) -> None:
        """Waits for what is under way, at most about three times the timeout where the brokers are gone."""
        if self._producer is not None:
            await self._stop(self._producer)

    async def send(
        self, topic: str, value: bytes, headers: list[Header], timestamp_ms: int | None
    ) -> asyncio.Future[Any]:
        """Hand the record to the producer; the future is its acknowledgement, or the KafkaError instead.

        Raises UnknownTopicError, or SendError where it could not even be handed over within the timeout.
        """
        producer = self._producer
        assert producer is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._check_topic(producer, topic)
                acknowledged: asyncio.Future[Any] = await producer.send(
                    topic, value, headers=headers, timestamp_ms=timestamp_ms
                )
                return acknowledged
        except (TimeoutError, KafkaTimeoutError) as error:
            raise SendError(f"topic {topic!r} took no request within {self._timeout_s} s") from error
        except MessageSizeTooLargeError as error:
            raise SendError(f"a request of {len(value)} bytes is more than a record may be") from error
        except KafkaError as error:  # anything else at this point: the producer's own task has died
            await self._replace(producer)
            raise SendError(f"topic {topic!r}: {error!r}") from error

    async def _check_topic(self, producer: AIOKafkaProducer, topic: str) -> None:
        """Know that a topic exists before the producer hears of it: it would ask for it for ever after."""
        if topic in self._topics:
            return
        cluster = await producer.client.fetch_all_metadata()
        self._topics = set(cluster.topics())
        if topic not in self._topics:
            raise UnknownTopicError(topic)

    async def _replace(self, dead: AIOKafkaProducer) -> None:
        async with self._rebuilding:
            if self._producer is not dead:
                return  # another task has replaced it
            logger.warning("request producer has failed and is replaced")
            self.rebuilds += 1
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self.start()
            await self._stop(dead)

    async def _stop(self, producer: AIOKafkaProducer) -> None:
        try:
            async with asyncio.timeout(self._timeout_s * 3):
                await producer.stop()
        except (TimeoutError, KafkaError, OSError) as error:
            logger.warning("request producer did not stop cleanly: %r", error)
            await producer.client.close()
