"""Requests that wait for their reply, by correlation id.

Contract: event loop only. Every entry leaves the table exactly once: by its reply, its failure or its timer.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable

from schemas.client.errors import ClientError, MissingRepliesError, ReplyDecodeError, ReplyTimeout
from schemas.codec import DecodeError, decode_reply
from schemas.messages import Reply


class Pending:
    """A request under way. The reply may be awaited by any number of tasks, at any time, or never."""

    def __init__(self, request_id: str, correlation_id: bytes, wait_ms: float) -> None:
        self.id = request_id
        self.correlation_id = correlation_id
        self.wait_ms = wait_ms  # from sending to ReplyTimeout
        self.sent_at = time.monotonic()
        self._future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def reply(self) -> Reply:
        """The reply, whatever its outcome. Raises ClientError where there is none."""
        return await asyncio.shield(self._future)  # cancelling one who waits takes nothing from the others

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def error(self) -> ClientError | None:
        """Why there will be no reply, once that is known."""
        error = self._future.exception() if self.done else None
        assert error is None or isinstance(error, ClientError)
        return error

    def on_done(self, callback: Callable[[Pending], None]) -> None:
        """Call `callback` with this handle once there is a reply or none will come."""
        self._future.add_done_callback(lambda _: callback(self))

    def resolve(self, reply: Reply | ClientError) -> None:
        """First call wins."""
        if self._future.done():
            return
        if isinstance(reply, Reply):
            self._future.set_result(reply)
        else:
            self._future.set_exception(reply)
            self._future.exception()  # retrieved: nobody is obliged to await it


async def collect_replies(handles: Iterable[Pending]) -> AsyncIterator[Reply]:
    """The replies as they come. Requests without one are told of at the end, by MissingRepliesError."""
    done: asyncio.Queue[Pending] = asyncio.Queue()
    num_handles = 0
    for num_handles, handle in enumerate(handles, start=1):  # noqa: B007 - the last count is used
        handle.on_done(done.put_nowait)
    errors: dict[str, ClientError] = {}
    for _ in range(num_handles):
        handle = await done.get()
        if handle.error is not None:
            errors[handle.id] = handle.error
        else:
            yield await handle.reply()
    if errors:
        raise MissingRepliesError(errors)


class PendingTable:
    """All that waits, at most `max_pending`. `on_overdue` gets the sending time (monotonic) of each entry
    whose timer ran out."""

    def __init__(self, max_pending: int) -> None:
        self.on_overdue: Callable[[float], None] = lambda sent_at: None
        self.ignored = 0  # replies that nobody waits for
        self._max_pending = max_pending
        self._waiting: dict[bytes, tuple[Pending, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request_id: str, wait_ms: float) -> Pending:
        """Raises ClientError when full."""
        if len(self._waiting) >= self._max_pending:
            raise ClientError(
                f"{len(self._waiting)} requests wait already (max_pending = {self._max_pending})"
            )
        pending = Pending(request_id, uuid.uuid4().hex.encode("ascii"), wait_ms)
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._expire, pending)
        self._waiting[pending.correlation_id] = (pending, timer)
        return pending

    def deliver(self, correlation_id: bytes, value: bytes) -> None:
        """Settle the request of a reply, which may be a duplicate, late or somebody else's."""
        pending = self.take(correlation_id)
        if pending is None:
            self.ignored += 1
            return
        try:
            pending.resolve(decode_reply(value))
        except DecodeError as error:
            unreadable = ReplyDecodeError(f"the reply to request {pending.id!r} cannot be read: {error}")
            unreadable.__cause__ = error
            pending.resolve(unreadable)

    def take(self, correlation_id: bytes) -> Pending | None:
        """Remove and return; None for a correlation id that is not ours or has its reply already."""
        found = self._waiting.pop(correlation_id, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    def fail(self, pending: Pending, error: ClientError) -> None:
        self.take(pending.correlation_id)
        pending.resolve(error)

    def fail_all(self, error: ClientError) -> None:
        for pending, _ in list(self._waiting.values()):
            self.fail(pending, error)

    def _expire(self, pending: Pending) -> None:
        self.fail(pending, ReplyTimeout(pending.id, pending.wait_ms))
        self.on_overdue(pending.sent_at)
