"""One line to Redis that never makes anybody wait: TIME and MGET in a round trip, within a cap.

Contract: everything on one event loop. `ask` answers within `timeout_ms` or not at all, and never raises.
It never connects: a background task does, and returns there after an error, a timeout or a cancelled
question, always with a new connection, so that no answer can reach the wrong question. A timeout or an
error closes the door for `retry_ms` (the circuit breaker): a Redis that swallows everything delays the
questions in flight once, by timeout_ms at most, and none after that until it has answered probes within
timeout_ms again. Each round trip is also a measurement of Redis' clock; when nobody asks, the background
task does, every `refresh_ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import structlog
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from worker.deadlines import Clock

T = TypeVar("T")
log = structlog.get_logger(__name__)

CLOCK_SAMPLES = 3  # probes after connecting; the quickest sets the clock


@dataclass(frozen=True)
class LineOptions:
    """Where, and how long anything may take, ms."""

    url: str
    timeout_ms: float = 10
    connect_timeout_ms: float = 1000
    retry_ms: float = 1000
    refresh_ms: float = 5000


@dataclass
class LineCounters:
    """Since the start. Written on the event loop only; plain numbers, to be read from anywhere."""

    questions: int = 0
    timeouts: int = 0
    errors: int = 0
    connects: int = 0


class RedisLine:
    """The keys behind `options.url`; `clock` measures itself against Redis' on the way."""

    def __init__(self, options: LineOptions, clock: Clock) -> None:
        self.counters = LineCounters()
        self._options = options
        self._clock = clock
        retry = Retry(NoBackoff(), 0)
        self._pool = ConnectionPool.from_url(options.url, protocol=2, retry=retry, socket_timeout=None)
        self._connection: AbstractConnection | None = None
        self._wire = asyncio.Lock()  # one question at a time
        self._lost = asyncio.Event()  # wakes the background task
        self._closed_until_s = 0.0
        self._keeper: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether the next question will be sent."""
        return self._connection is not None

    async def start(self) -> None:
        """Connect; where Redis does not answer, go on without it and keep trying."""
        await self._connect()
        if not self.open:
            log.warning("Redis does not answer", effect="requests keep their messages' own deadlines")
        self._keeper = asyncio.create_task(self._keep(), name="redis-line")

    async def close(self) -> None:
        """End the background task and the connection."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        async with self._wire:
            await self._drop()

    async def ask(self, keys: Sequence[str]) -> list[bytes | None] | None:
        """The values of `keys`; None where the door is closed, and when the question failed and closed it."""
        if self._connection is None:
            return None
        exchange = asyncio.create_task(self._exchange(keys))
        try:
            return await self._within_cap(exchange)
        except TimeoutError:
            self.counters.timeouts += 1
            self._close_door(f"no answer in {self._options.timeout_ms:g} ms")
        except Exception as error:  # noqa: BLE001 - whatever answers on that port, requests must go on
            self.counters.errors += 1
            self._close_door(repr(error))
        finally:
            exchange.cancel()  # late, or the caller was cancelled; it drops its connection itself
        return None

    async def _within_cap(self, task: asyncio.Future[T]) -> T:
        """The result of a task of this line; TimeoutError after timeout_ms, the task left running.

        Not wait_for, which cancels at once: when the loop was late, not Redis, the answer already lies in
        the socket and is read before the waiter wakes.
        """
        await asyncio.wait({task}, timeout=self._options.timeout_ms / 1000)
        if not task.done():
            raise TimeoutError
        return task.result()

    async def _exchange(self, keys: Sequence[str]) -> list[bytes | None] | None:
        async with self._wire:
            connection = self._connection
            if connection is None:  # lost while this question waited for its turn
                return None
            try:
                self.counters.questions += 1
                return await self._round_trip(connection, keys)
            except BaseException:  # cancelled too: an answer may still be on its way to nobody
                await self._drop()
                raise

    async def _round_trip(self, connection: AbstractConnection, keys: Sequence[str]) -> list[bytes | None]:
        commands: list[tuple[str, ...]] = [("TIME",)]
        if keys:
            commands.append(("MGET", *keys))
        asked_s = monotonic()
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        seconds, microseconds = await connection.read_response()
        self._clock.measure(int(seconds) * 1000 + int(microseconds) / 1000, asked_s, monotonic())
        values: list[bytes | None] = await connection.read_response() if keys else []
        if len(values) != len(keys):
            raise RedisError(f"MGET of {len(keys)} keys answered with {len(values)} values")
        return values

    async def _keep(self) -> None:
        """Reconnect after a loss, not before the door opens again; keep the clock while nobody asks."""
        while True:
            if self._connection is None:
                await asyncio.sleep(max(0.0, self._closed_until_s - monotonic()))
                await self._connect()
                if self.open:
                    log.info("redis_available")
                continue
            self._lost.clear()
            asked = self.counters.questions
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), self._options.refresh_ms / 1000)
            if asked == self.counters.questions:
                await self.ask(())

    async def _connect(self) -> None:
        """Connect, and open the door if probes are answered as fast as questions must be."""
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            await _bounded(connection.connect(), self._options.connect_timeout_ms)  # type: ignore[no-untyped-call]
            for _ in range(CLOCK_SAMPLES):
                probe = asyncio.ensure_future(self._round_trip(connection, ()))
                try:
                    await self._within_cap(probe)
                finally:
                    probe.cancel()
        except BaseException as error:
            self._closed_until_s = monotonic() + self._options.retry_ms / 1000
            await _disconnect(connection)
            if not isinstance(error, Exception):  # the line is being closed
                raise
            self.counters.errors += 1
            log.debug("redis_connect_failed", error=repr(error))
            return
        self.counters.connects += 1
        self._connection = connection

    def _close_door(self, reason: str) -> None:
        self._closed_until_s = monotonic() + self._options.retry_ms / 1000
        log.warning(
            "Redis is left alone for a while",
            reason=reason,
            effect="requests keep their messages' own deadlines",
        )

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._lost.set()
        if connection is not None:
            await _disconnect(connection)


async def _bounded(work: Awaitable[None], timeout_ms: float) -> None:
    async with asyncio.timeout(timeout_ms / 1000):
        await work


async def _disconnect(connection: AbstractConnection) -> None:
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)
