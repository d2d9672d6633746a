"""One request of a bulk run, asked of the workers until every row of it has a result. One event loop.

A request's id names run, part and rows, so that one sent again, by this run or by its continuation, is known
for what it is. `rejected` (overloaded, shutting down) and `expired` are no results: the window shrinks and
the request waits its turn again, as long as anybody gets answers. A request that is at fault is taken apart
until only the rows at fault have errors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.client import Client, ClientError
from schemas.client.errors import UnknownTopicError
from schemas.messages import ErrorCode, Outcome, Reply, Sample
from tools.bulk.engine_scorer import row_error, sample_index
from tools.bulk.rows import NO_REPLY, GoodRow, RowError, RowResult
from tools.bulk.window import Window
from tools.errors import UserError

PRIORITY = 9  # the last: online requests in the same queue go first
MAX_SILENT_TRIES = 5  # tries without any reply, of a request that may be what ends its workers
BUSY = {ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN}
Settled = list[tuple[GoodRow, RowResult]]


class NoProgressError(RuntimeError):
    """Nobody has been answered for too long; the run ends and can go on later."""


@dataclass(frozen=True)
class AskOptions:
    """timeout_ms: a request's deadline from its sending. give_up_s: how long without any answer is borne."""

    pipeline: str
    run: str
    timeout_ms: float
    give_up_s: float


class Asker:
    """All requests of a run."""

    def __init__(self, client: Client, window: Window, options: AskOptions) -> None:
        self._client = client
        self._window = window
        self._options = options
        self._answered_at = time.monotonic()
        self._heard_at = self._answered_at  # of any reply, or of asking when nothing was under way
        self._listening = 0

    def silent_s(self) -> float:
        """How long what is under way has waited for any reply at all; 0 where nothing is under way."""
        return time.monotonic() - self._heard_at if self._listening else 0.0

    async def ask(self, part: int, first_row: int, rows: Sequence[GoodRow], models: set[str]) -> Settled:
        """A result for each row; `models` gets the digests that answered. The caller holds no place of the
        window. Raises NoProgressError, UserError."""
        settled: Settled = []
        left = [list(rows)]
        while left:
            group = left.pop()
            found = await self._reply(request_id(self._options.run, part, first_row, group), group)
            if isinstance(found, RowError):
                settled += [(row, found) for row in group]
            elif found.outcome is Outcome.OK:
                if found.model is not None:
                    models.add(found.model.digest)
                answers = [{key: row[key] for key in row if key != "id"} for row in found.results]
                settled += zip(group, answers, strict=True)
            else:
                wrong, rest = take_apart(group, found)
                settled += wrong
                left += rest
        return settled

    async def _reply(self, name: str, rows: Sequence[GoodRow]) -> Reply | RowError:
        """The first reply that is not about the moment."""
        silent = tries = 0
        while True:
            sent_at = await self._window.acquire(again=tries > 0)
            try:
                found = await self._exchange(name, rows)
                if not isinstance(found, ClientError) and not is_busy(found):
                    self._answered_at = time.monotonic()
                    self._window.succeeded()
                    return found
                self._window.refused(sent_at)
            finally:
                self._window.release()
            tries += 1
            silent += isinstance(found, ClientError)
            reason = found if isinstance(found, ClientError) else f"workers say {found.outcome}"
            if time.monotonic() - self._answered_at > self._options.give_up_s:
                text = f"no request was answered for {self._options.give_up_s:g} s; the last one: {reason}"
                raise NoProgressError(text)
            if silent == MAX_SILENT_TRIES:
                return RowError(NO_REPLY, f"asked {tries} times as request {name!r}: {reason}")

    async def _exchange(self, name: str, rows: Sequence[GoodRow]) -> Reply | ClientError:
        samples = [row.sample for row in rows if isinstance(row.sample, Sample)]
        if not self._listening:
            self._heard_at = time.monotonic()
        self._listening += 1
        try:
            pending = await self._client.submit(
                self._options.pipeline,
                samples,
                timeout_ms=self._options.timeout_ms,
                id=name,
                priority=PRIORITY,
            )
            reply = await pending.reply()
            self._heard_at = time.monotonic()
            return reply
        except UnknownTopicError as error:
            raise UserError(f"{error}: no worker serves pipeline {self._options.pipeline!r} there") from error
        except ClientError as error:
            return error
        finally:
            self._listening -= 1


def request_id(run: str, part: int, first_row: int, rows: Sequence[GoodRow]) -> str:
    """The same for the same rows of the same run: digest, part, first and last row, their number."""
    first, last = first_row + rows[0].place, first_row + rows[-1].place
    return f"bulk-{run}-{part}-{first}-{last}x{len(rows)}"


def is_busy(reply: Reply) -> bool:
    """Whether the same request may be answered at another moment."""
    return reply.error is not None and (reply.outcome is Outcome.EXPIRED or reply.error.code in BUSY)


def take_apart(rows: list[GoodRow], reply: Reply) -> tuple[Settled, list[list[GoodRow]]]:
    """(rows with their errors, groups to ask again) of a request that was refused for itself."""
    error = reply.error
    code, message, field = (error.code, error.message, error.field) if error else (reply.outcome, "", None)
    told = row_error(code, message, field)
    place = sample_index(field)
    if len(rows) == 1 or reply.outcome is Outcome.CANCELLED:
        return [(row, told) for row in rows], []
    if place is not None and place < len(rows):
        return [(rows[place], told)], [[*rows[:place], *rows[place + 1 :]]]
    if reply.outcome is Outcome.FAILED:
        return [], [[row] for row in rows]
    middle = len(rows) // 2
    return [], [rows[:middle], rows[middle:]]
