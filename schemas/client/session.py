"""The client that producers use: score, submit, collect, cancel.

    async with Client("kafka:9092", redis_url="redis://redis") as client:
        reply = await client.score("relevance", [{"query": "red shoes", "title": "Nike"}], timeout_ms=20)

Contract: one event loop. A Reply comes back for every outcome (ok, expired, rejected ...); a ClientError is
raised only where there is none. Deadlines are by Redis' clock, so that this machine's clock does not matter;
Redis failing never fails a request, because the message carries its deadline too. Every wait is bounded. A
duplicate of a reply is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Self

from aiokafka.errors import KafkaError

from schemas.client.errors import ClientClosedError, ClientError, SendError
from schemas.client.log_limit import LogLimit
from schemas.client.pending import Pending, PendingTable, collect_replies
from schemas.client.redis_deadlines import RedisDeadlines
from schemas.client.replies import ReplyReader
from schemas.client.samples import AnySample, build_request
from schemas.client.sender import RequestSender
from schemas.client.settings import ClientSettings
from schemas.codec import encode_request
from schemas.headers import request_headers
from schemas.messages import Reply, Request
from schemas.plain import quote

DEFAULT_SETTINGS = ClientSettings()

logger = logging.getLogger(__name__)


class Client:
    """Requests of any pipeline, replies from one topic. Use it as `async with`, or start() and close() it."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        reply_topic: str = "boundgen.replies",
        topics: Mapping[str, str] | None = None,
        redis_url: str | None = None,
        reply_group: str | None = None,
        settings: ClientSettings = DEFAULT_SETTINGS,
    ) -> None:
        """`topics` maps pipelines to request topics, by default boundgen.{pipeline}.requests. With
        `reply_group`, replies are read by a consumer group of that name plus an id of this client's own.
        Without `redis_url` deadlines can be neither moved nor cancelled, and this machine's clock counts."""
        self._reply_topic = reply_topic
        self._topics = dict(topics or {})
        self._settings = settings
        self._servers = bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
        shared = {**settings.kafka, "bootstrap_servers": self._servers}
        consumer_options = {
            **shared,
            "fetch_max_wait_ms": settings.fetch_max_wait_ms,
            "metadata_max_age_ms": settings.topic_refresh_ms,
            "request_timeout_ms": round(settings.send_timeout_s * 1000) + settings.fetch_max_wait_ms,
        }
        self._pending = PendingTable(settings.max_pending)
        self._reader = ReplyReader(
            reply_topic,
            self._pending.deliver,
            consumer_options,
            group=None if reply_group is None else f"{reply_group}.{uuid.uuid4().hex}",
            partition=settings.reply_partition,
        )
        self._sender = RequestSender(shared, settings.send_timeout_s)
        self._redis: RedisDeadlines | None = None
        if redis_url is not None:
            self._redis = RedisDeadlines(
                redis_url, settings.redis_timeout_ms, settings.redis_pause_s, settings.clock_refresh_s
            )
        self._pending.on_overdue = self._reader.suspect
        self._log_limit = LogLimit()
        self._state = "new"

    @property
    def ignored_replies(self) -> int:
        """Duplicates, replies that came too late, and those of others who share the topic."""
        return self._pending.ignored

    @property
    def redis_failures(self) -> int:
        """How often Redis failed or was too late; no request was failed by it."""
        return 0 if self._redis is None else self._redis.failures

    @property
    def rebuilds(self) -> int:
        """How many consumers and producers died and were replaced."""
        return self._reader.rebuilds + self._sender.rebuilds

    async def start(self) -> None:
        """Connect, and stand at the end of the reply topic. Raises UnknownTopicError for that topic,
        ClientError where Kafka does not answer; an absent Redis is only counted."""
        self._log_limit.attach()
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                await self._reader.start()
                await self._sender.start()
                if self._redis is not None:
                    await self._redis.start()
        except BaseException as error:
            await self.close()
            if isinstance(error, (KafkaError, OSError)):  # TimeoutError is one
                raise ClientError(f"bootstrap_servers = {self._servers!r}: {error!r}") from error
            raise
        self._state = "open"

    async def close(self) -> None:
        """Fail what is pending with ClientClosedError, flush what is sent, disconnect."""
        self._state = "closed"
        self._pending.fail_all(ClientClosedError("the client was closed before the reply came"))
        parts = [self._reader.close(), self._sender.close()]
        if self._redis is not None:
            parts.append(self._redis.close())
        try:
            for error in await asyncio.gather(*parts, return_exceptions=True):
                if error is not None:
                    logger.warning("closing the client: %r", error)
        finally:  # cancelled, too
            self._log_limit.detach()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def score(
        self,
        pipeline: str,
        samples: Iterable[AnySample],
        *,
        timeout_ms: float | None = None,
        id: str | None = None,  # noqa: A002 - the wire's word
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send one request and wait for its reply, whatever its outcome.

        `timeout_ms` is the request's deadline, from now; the reply is waited for a grace longer. Raises
        ValueError for what cannot be sent, naming the field; ReplyTimeout and other ClientErrors.
        """
        pending = await self.submit(
            pipeline, samples, timeout_ms=timeout_ms, id=id, priority=priority, options=options
        )
        try:
            return await pending.reply()
        except asyncio.CancelledError:
            self._pending.take(pending.correlation_id)  # nobody else can wait for it
            raise

    async def submit(
        self,
        pipeline: str,
        samples: Iterable[AnySample],
        *,
        timeout_ms: float | None = None,
        id: str | None = None,  # noqa: A002 - the wire's word
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Pending:
        """Send one request; the handle's reply() is the rest of score(), which tells what is raised."""
        _check_timeout(timeout_ms)
        deadline_ms = self._deadline(timeout_ms)
        request = build_request(
            pipeline,
            samples,
            id,
            deadline_ms=deadline_ms,
            timeout_ms=None if deadline_ms is not None or timeout_ms is None else round(timeout_ms),
            priority=priority,
            options=dict(options) if isinstance(options, Mapping) else {} if options is None else options,
        )
        wait_ms = None if timeout_ms is None else max(timeout_ms, 0) + self._settings.grace_ms
        return await self.submit_request(request, wait_ms=wait_ms)

    async def submit_request(self, request: Request, *, wait_ms: float | None = None) -> Pending:
        """Send a request as it is, deadline included, and wait for its reply at most `wait_ms` (default: the
        settings' wait_ms). Its deadline_ms must be by Redis' clock. Raises ValueError or ClientError."""
        if self._state != "open":
            raise ClientClosedError(f"the client is {self._state}: use it within `async with`")
        value = encode_request(request)
        topic = self._topics.get(request.pipeline, f"boundgen.{request.pipeline}.requests")
        pending = self._pending.add(request.id, self._settings.wait_ms if wait_ms is None else wait_ms)
        settings = self._settings
        headers = request_headers(
            self._reply_topic, pending.correlation_id, settings.reply_partition, settings.dialect
        )
        now_ms = None if self._redis is None else self._redis.now_ms()
        try:
            async with asyncio.timeout(pending.wait_ms / 1000):
                acknowledged, _ = await asyncio.gather(
                    self._sender.send(topic, value, headers, now_ms), self._write_deadline(request)
                )
        except ClientError as error:
            self._pending.fail(pending, error)
            raise
        except TimeoutError:
            late = SendError(f"topic {topic!r} took no request within {pending.wait_ms:.0f} ms")
            self._pending.fail(pending, late)
            raise late from None
        except BaseException:  # cancelled: the caller never gets the handle
            self._pending.take(pending.correlation_id)
            raise
        acknowledged.add_done_callback(lambda future: self._acknowledged(pending, topic, future))
        return pending

    def collect(self, handles: Iterable[Pending]) -> AsyncIterator[Reply]:
        """The replies as they come. Requests without one are told of at the end, by MissingRepliesError."""
        return collect_replies(handles)

    async def cancel(self, request_id: str) -> bool:
        """Ask the worker to drop a request that has not reached the model; its reply then says `cancelled`.
        False: Redis did not take it. Raises ValueError for a client without Redis."""
        if self._redis is None:
            raise ValueError("redis_url = None: a request can only be cancelled through Redis")
        return await self._redis.cancel(request_id)

    def _deadline(self, timeout_ms: float | None) -> int | None:
        """Epoch ms by Redis' clock; None without a timeout or without that clock: then the message carries
        the timeout instead, which counts from the record's timestamp."""
        now_ms = None if self._redis is None else self._redis.now_ms()
        return None if now_ms is None or timeout_ms is None else now_ms + round(timeout_ms)

    async def _write_deadline(self, request: Request) -> None:
        if self._redis is not None and request.deadline_ms is not None:
            await self._redis.write(request.id, request.deadline_ms)

    def _acknowledged(self, pending: Pending, topic: str, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._pending.fail(pending, SendError(f"topic {topic!r} did not acknowledge: {error!r}"))


def _check_timeout(timeout_ms: object) -> None:
    if timeout_ms is not None and not (isinstance(timeout_ms, Real) and math.isfinite(timeout_ms)):
        raise ValueError(f"timeout_ms: should be a finite number, got {quote(timeout_ms)}")
