"""Redis, for clients: its clock, and the keys that set or cancel a deadline.

Contract: event loop only. Nothing here fails or holds up a request: a write takes at most `timeout_ms`, then
Redis is left alone for `pause_s`; failures are counted. Commands go in order through one connection, many in
one round trip, and are never cancelled half-way: what comes too late is only no longer waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from schemas.deadlines import CANCEL, CANCEL_KEEP_MS, GRACE_MS, deadline_key, deadline_value

_SOCKET_S = 1.0  # how long a command may stay under way after nobody waits for it any more
_CLOCK_ROUNDS = 3  # the quickest of them counts: half its round trip is the error of the offset

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Write:
    key: str
    value: bytes
    expires_ms: int
    done: asyncio.Future[bool]


class RedisDeadlines:
    """Writes deadlines by Redis' own clock, so that a wrong clock here does no harm."""

    def __init__(self, url: str, timeout_ms: float, pause_s: float, refresh_s: float) -> None:
        self.failures = 0  # failed or late round trips
        self.skipped = 0  # writes left out while Redis was left alone
        try:
            self._redis = Redis.from_url(
                url,
                socket_timeout=_SOCKET_S,
                socket_connect_timeout=_SOCKET_S,
                retry=Retry(NoBackoff(), 0),  # redis-py's default is ten tries
            )
        except ValueError as error:  # the value may hold a password
            raise ValueError(f"redis_url = '{url.partition(':')[0]}:…': {error}") from None
        self._timeout_s = timeout_ms / 1000
        self._pause_s = pause_s
        self._refresh_s = refresh_s
        self._resume_at = 0.0
        self._offset_ms: float | None = None  # Redis' epoch ms minus monotonic ms
        self._measured = asyncio.Event()
        self._writes: list[_Write] = []
        self._flushing: asyncio.Task[None] | None = None
        self._clock: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Measure the clock; returns after a second at most, with or without it."""
        self._clock = asyncio.create_task(self._keep_clock(), name="redis-clock")
        measured = asyncio.ensure_future(self._measured.wait())
        await asyncio.wait({measured}, timeout=_SOCKET_S)
        measured.cancel()

    async def close(self) -> None:
        tasks = [task for task in (self._clock, self._flushing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._redis.aclose()

    def now_ms(self) -> int | None:
        """Epoch ms by Redis' clock; None until Redis has answered once."""
        return None if self._offset_ms is None else round(time.monotonic() * 1000 + self._offset_ms)

    async def write(self, request_id: str, deadline_ms: int) -> bool:
        """Set a request's deadline. False: Redis did not take it in time."""
        if time.monotonic() < self._resume_at:
            self.skipped += 1
            return False
        value = deadline_value(deadline_ms)
        return await self._set(request_id, value, deadline_ms + GRACE_MS, self._timeout_s)

    async def cancel(self, request_id: str, keep_ms: int = CANCEL_KEEP_MS) -> bool:
        """Mark a request as cancelled, for `keep_ms`. Tried even while Redis is left alone, and for a second:
        no request waits for it. False: Redis has not answered; it may still take it."""
        now = self.now_ms()
        expires_ms = (round(time.time() * 1000) if now is None else now) + keep_ms
        return await self._set(request_id, CANCEL, expires_ms, _SOCKET_S)

    async def _set(self, request_id: str, value: bytes, expires_ms: int, timeout_s: float) -> bool:
        write = _Write(
            deadline_key(request_id), value, expires_ms, asyncio.get_running_loop().create_future()
        )
        self._writes.append(write)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="redis-deadlines")
        await asyncio.wait({write.done}, timeout=timeout_s)
        if not write.done.done():
            self._pause(f"no answer within {timeout_s * 1000:.0f} ms")
        return write.done.done() and write.done.result()

    async def _flush(self) -> None:
        while self._writes:
            batch, self._writes = self._writes, []
            pipeline = self._redis.pipeline(transaction=False)
            for write in batch:
                pipeline.set(write.key, write.value, pxat=write.expires_ms)
            try:
                await pipeline.execute()
            except (RedisError, OSError) as error:
                self._pause(repr(error))
                batch += self._writes
                self._writes = []
                taken = False
            else:
                taken = True
            for write in batch:
                if not write.done.done():
                    write.done.set_result(taken)

    async def _keep_clock(self) -> None:
        while True:
            try:
                self._offset_ms = await self._measure()
                self._measured.set()
            except (RedisError, OSError) as error:
                self._pause(repr(error))
            await asyncio.sleep(self._refresh_s if self._measured.is_set() else self._pause_s)

    async def _measure(self) -> float:
        """Redis' epoch ms minus our monotonic ms."""
        best_round, offset_ms = float("inf"), 0.0
        for _ in range(_CLOCK_ROUNDS):
            before = time.monotonic() * 1000
            seconds, microseconds = await self._redis.time()
            after = time.monotonic() * 1000
            if after - before < best_round:
                best_round = after - before
                offset_ms = int(seconds) * 1000 + int(microseconds) / 1000 - (before + after) / 2
        return offset_ms

    def _pause(self, reason: str) -> None:
        self.failures += 1
        if time.monotonic() >= self._resume_at:
            logger.warning(
                "Redis left alone for %s s, messages carry their deadlines: %s", self._pause_s, reason
            )
        self._resume_at = time.monotonic() + self._pause_s
