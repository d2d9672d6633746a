"""A capture from beginning to end: requests, then the replies to them; or both as they come.

On one event loop. Ends at what was there when it began, or, following, when told to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.codec import DecodeError, decode_reply
from tools.capture.capture_files import CaptureWriter
from tools.capture.matching import ReplyMatcher
from tools.capture.records import Captured
from tools.capture.topic_reader import Span, TopicReader

SKEW_MS = 600_000  # how far a reply's timestamp may seem to be before its request's: clocks differ


@dataclass(frozen=True)
class Plan:
    """topics, replies: name -> number of partitions. keep: whether a request is wanted. limit: requests."""

    topics: Mapping[str, int]
    replies: Mapping[str, int]
    span: Span
    keep: Callable[[Captured], bool] = lambda _: True
    limit: int | None = None
    follow: bool = False


@dataclass
class Counts:
    """What was kept. models: digests in the replies, with how many answers each gave."""

    requests: int = 0
    replies: int = 0
    models: dict[str, int] = field(default_factory=dict)


class Capture:
    """One run over an open writer. `stop`: set from outside to end it early, or at all when following."""

    def __init__(self, plan: Plan, options: Mapping[str, Any], writer: CaptureWriter, stop: asyncio.Event):
        self.counts = Counts()
        self._plan = plan
        self._options = options
        self._writer = writer
        self._stop = stop
        self._matcher = ReplyMatcher()
        self._earliest_ms = int(time.time() * 1000)  # of the requests that were kept

    async def run(self) -> Counts:
        """UserError where the broker fails; what was written until then is there."""
        plan = self._plan
        if plan.follow:
            await self._follow()
            return self.counts
        async with TopicReader(self._options, plan.topics, plan.span) as reader:
            async for records in reader.to_end():
                self._take(records)
                if self._full or self._stop.is_set():
                    break
        if plan.replies and self.counts.requests and not self._stop.is_set():
            span = Span(since_ms=self._earliest_ms - SKEW_MS)
            async with TopicReader(self._options, plan.replies, span) as reader:
                async for records in reader.to_end():
                    self._take(records)
                    if self._stop.is_set():
                        break
        return self.counts

    @property
    def _full(self) -> bool:
        return self._plan.limit is not None and self.counts.requests >= self._plan.limit

    async def _follow(self) -> None:
        now_ms, since_ms = int(time.time() * 1000), self._plan.span.since_ms
        span = Span(since_ms=now_ms if since_ms is None else since_ms)
        reply_span = Span(since_ms=now_ms if since_ms is None else since_ms - SKEW_MS)
        async with (
            TopicReader(self._options, self._plan.topics, span) as requests,
            TopicReader(self._options, self._plan.replies, reply_span) as replies,
        ):
            while not self._stop.is_set() and not self._full:
                self._take(await requests.poll())
                if self._plan.replies:
                    self._take(await replies.poll())
            if self._full and self._plan.replies:
                await self._last_replies(replies)

    async def _last_replies(self, replies: TopicReader) -> None:
        """The limit is reached: what already answers the requests belongs to them."""
        while not self._stop.is_set() and (records := await replies.poll()):
            self._take(records)

    def _take(self, records: Any) -> None:
        for record in records:
            if record.topic in self._plan.topics:
                self._take_request(Captured.of("request", record))
            else:
                reply = Captured.of("reply", record)
                if self._matcher.answers(reply, hold=self._plan.follow):
                    self._put_reply(reply)
        if records:
            self._writer.flush()

    def _take_request(self, request: Captured) -> None:
        if self._full or not self._plan.keep(request):
            return
        self._writer.put(request)
        self.counts.requests += 1
        self._earliest_ms = min(self._earliest_ms, max(request.timestamp_ms, SKEW_MS))
        if self._plan.replies:
            for reply in self._matcher.add_request(request):
                self._put_reply(reply)

    def _put_reply(self, reply: Captured) -> None:
        self._writer.put(reply)
        self.counts.replies += 1
        try:
            model = decode_reply(reply.value or b"").model
        except DecodeError:
            return
        if model is not None:
            self.counts.models[model.digest] = self.counts.models.get(model.digest, 0) + 1
