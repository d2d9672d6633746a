"""Replies and dead letters into Kafka: each send is acked by all replicas or fails within a bound.

Contract: everything on one event loop, except `num_partitions`, which any thread may read. A send never
creates a topic and never waits for one: a topic that is not there is asked for again every
`topic_recheck_ms` and refused in between. Not idempotent on purpose: aiokafka's idempotent producer never
gives up on a batch; a retried send may therefore publish a reply twice. A producer whose sender task died is
replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    ProducerClosed,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from worker.logs import Throttle
from worker.metrics import WorkerMetrics
from worker.replies import Outgoing
from worker.sending import send_acked
from worker.settings import ReplySettings

log = structlog.get_logger(__name__)

MAX_BATCH_BYTES = 128 << 10  # a partition's records of one send
MAX_RECORD_BYTES = 64 << 20  # dead letters are as large as requests: the broker's limit decides
MAX_BACKOFF_S = 2.0

RefusedReason = Literal["no_topic", "no_partition", "too_large", "not_allowed"]
_REFUSALS: dict[type[KafkaError], RefusedReason] = {
    MessageSizeTooLargeError: "too_large",
    RecordListTooLargeError: "too_large",
    TopicAuthorizationFailedError: "not_allowed",
    ClusterAuthorizationFailedError: "not_allowed",
    InvalidTopicError: "no_topic",
    PolicyViolationError: "not_allowed",
    InvalidTimestampError: "not_allowed",
    CorruptRecordException: "not_allowed",
}
_MAYBE_GONE = (UnknownTopicOrPartitionError, NotLeaderForPartitionError, LeaderNotAvailableError)


class RefusedError(Exception):
    """This record cannot be published to this topic, however often one tries; others may."""

    def __init__(self, reason: RefusedReason, message: str) -> None:
        super().__init__(message)
        self.reason: RefusedReason = reason


class TooLateError(Exception):
    """Attempts failed, and meanwhile the record is not wanted any more. One of them may have got through."""


class UnreachableError(Exception):
    """Kafka took nothing for `give_up_ms`."""


class Publisher:
    """One producer for all pipelines."""

    def __init__(self, connection: dict[str, Any], settings: ReplySettings, metrics: WorkerMetrics) -> None:
        self._connection = connection
        self._settings = settings
        self._metrics = metrics
        self._producer: AIOKafkaProducer | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._rebuild = asyncio.Lock()
        self._missing: dict[str, float] = {}  # topic: loop time when to look again
        self._throttle = Throttle()
        self._timeout_s = settings.timeout_ms / 1000
        self.failing_since: float | None = None  # loop time of the first failure after the last success

    @property
    def ready(self) -> bool:
        return self._producer is not None and self.failing_since is None

    @property
    def client(self) -> AIOKafkaClient | None:
        """The connections of the producer; None until started."""
        return None if self._producer is None else self._producer.client

    async def start(self, topics: frozenset[str]) -> None:
        """Connect and learn the partitions of `topics`; those missing are only logged. KafkaError."""
        self._producer = await self._connect()
        for topic in sorted(topics):
            try:
                await self._find(topic)
            except RefusedError:
                log.warning("topic is missing: what should go there is refused until it exists", topic=topic)

    async def close(self, timeout_s: float) -> None:
        """Send what is pending, bounded, and disconnect."""
        if self._producer is not None:
            await self._stop(self._producer, timeout_s)
            self._producer = None
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def num_partitions(self, topic: str) -> int | None:
        """How many partitions the topic has as far as is known; None: not known (to exist)."""
        client = self.client
        known = None if client is None else client.cluster.partitions_for_topic(topic)
        return None if known is None else len(known)

    async def send(self, record: Outgoing, wanted: Callable[[], bool] = lambda: True) -> None:
        """Return when all replicas have it. RefusedError at once, UnreachableError after `give_up_ms`;
        TooLateError where `wanted`, asked before each further attempt, says no."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._settings.give_up_ms / 1000
        backoff_s = self._settings.retry_backoff_ms / 1000
        while True:
            try:
                await self._attempt(record)
            except RefusedError:
                self.failing_since = None
                raise
            except (KafkaError, OSError, TimeoutError) as error:
                self._failed(error, record.topic)
                if loop.time() + backoff_s > give_up_s:
                    raise UnreachableError(f"{type(error).__name__}: {error}") from error
            else:
                self.failing_since = None
                return
            await asyncio.sleep(backoff_s)
            if not wanted():
                raise TooLateError
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _attempt(self, record: Outgoing) -> None:
        producer = await self._living_producer()
        if producer.client.cluster.partitions_for_topic(record.topic) is None:
            await self._find(record.topic)
        known = self.num_partitions(record.topic)
        if record.partition is not None and known is not None and record.partition >= known:
            raise RefusedError(
                "no_partition", f"{record.topic} has {known} partitions, not {record.partition}"
            )
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                await send_acked(producer, record)
        except KafkaError as error:
            if (reason := _REFUSALS.get(type(error))) is not None:
                raise RefusedError(reason, f"{record.topic}: {type(error).__name__}") from error
            if isinstance(error, _MAYBE_GONE):
                await self._find(record.topic)
            raise

    async def _find(self, topic: str) -> None:
        """Make sure that the topic exists and its partitions are known. RefusedError if it does not exist."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._missing.get(topic, 0.0):
            raise RefusedError("no_topic", f"topic {topic!r} does not exist")
        assert self._producer is not None, "started"
        client = self._producer.client
        async with asyncio.timeout(2 * self._timeout_s):
            # All topics at once: asking for one by name would create it where brokers auto-create.
            existing = (await client.fetch_all_metadata()).topics(exclude_internal_topics=False)
            if topic in existing:
                self._missing.pop(topic, None)
                await client.add_topic(topic)
                await client.force_metadata_update()
                return
        self._missing[topic] = loop.time() + self._settings.topic_recheck_ms / 1000
        client.set_topics(client.cluster.topics() & existing)
        raise RefusedError("no_topic", f"topic {topic!r} does not exist")

    async def _living_producer(self) -> AIOKafkaProducer:
        async with self._rebuild:
            producer = self._producer
            assert producer is not None, "started"
            task = producer._sender.sender_task  # aiokafka has no public sign of a dead sender (issue 1017)
            if task is not None and task.done():
                log.error("the producer's sender died: it is replaced, unacked sends are repeated")
                self._metrics.publisher_rebuilds.inc()
                self._producer = await self._connect()
                closing = asyncio.create_task(self._stop(producer, self._timeout_s))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                return self._producer
            return producer

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._connection,
            acks="all",
            linger_ms=0,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_RECORD_BYTES,
            request_timeout_ms=self._settings.timeout_ms,
            retry_backoff_ms=self._settings.retry_backoff_ms,
        )
        try:
            await producer.start()
        except BaseException:
            await self._stop(producer, self._timeout_s)
            raise
        return producer

    async def _stop(self, producer: AIOKafkaProducer, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await producer.stop()
        except (KafkaError, OSError, TimeoutError, ProducerClosed) as error:
            log.warning("the producer did not stop in time: what it held is lost", error=repr(error))
            await producer.client.close()

    def _failed(self, error: BaseException, topic: str) -> None:
        self._metrics.publish_errors.labels(type(error).__name__).inc()
        if self.failing_since is None:
            self.failing_since = asyncio.get_running_loop().time()
        if (kept := self._throttle.allow(topic)) is not None:
            log.warning("a send failed: tried again", topic=topic, error=repr(error), kept_back=kept)
