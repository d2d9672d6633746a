"""Scoring by workers that are running: a producer that takes what online traffic leaves.

An event loop on a thread of its own. `start` returns once every request of the part has had its turn, so at
most the window's requests of the next part are under way beside those of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from schemas.client import Client, ClientError, ClientSettings
from schemas.plain import Limits
from tools.bulk.asking import Asker, AskOptions
from tools.bulk.engine_scorer import group_rows
from tools.bulk.relay import Stop
from tools.bulk.rows import BulkSample, GoodRow, Part, RowError, RowResult, ScoredPart
from tools.bulk.silence import SilenceWatch
from tools.bulk.window import Window
from tools.bulk.wire_samples import to_wire
from tools.errors import UserError

CLOSE_S = 60.0


@dataclass(frozen=True)
class Shape:
    """How rows become requests, and how many of these may be under way."""

    rows: int
    chars: int
    in_flight: int
    limits: Limits


class KafkaScorer:
    """`start` is called by one thread and blocks while enough is under way."""

    def __init__(self, client: Client, options: AskOptions, shape: Shape, stop: Stop) -> None:
        """Called on the loop's thread, the client open."""
        self.window = Window(shape.in_flight)
        self.asker = Asker(client, self.window, options)
        self._shape = shape
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._parts: set[asyncio.Task[ScoredPart]] = set()

    def start(self, part: Part) -> Future[ScoredPart]:
        """Ask for every row of the part; the future has the results. Raises Stopped."""
        asked = threading.Event()
        future = asyncio.run_coroutine_threadsafe(self._tracked(part, asked), self._loop)
        self._stop.until(asked.wait)
        return future

    async def cancel(self) -> None:
        """End what is under way: the run is over, or will go on another time."""
        for task in self._parts:
            task.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)

    async def _tracked(self, part: Part, asked: threading.Event) -> ScoredPart:
        task = asyncio.create_task(self._score(part, asked))
        self._parts.add(task)
        task.add_done_callback(self._parts.discard)
        return await task

    async def _score(self, part: Part, asked: threading.Event) -> ScoredPart:
        results: list[RowResult | None] = part.first_results()
        good = []
        for number, row in enumerate(part.rows):
            if isinstance(row.sample, BulkSample):
                sample = to_wire(row.sample, self._shape.limits)
                if isinstance(sample, RowError):
                    results[number] = sample
                else:
                    good.append(GoodRow(number, sample, row.num_chars))
        models: set[str] = set()
        turns = asyncio.Semaphore(2 * self._shape.in_flight)  # tasks, not places: those are the window's

        async def settle(group: list[GoodRow]) -> None:
            try:
                found = await self.asker.ask(part.index, part.rows[0].number, group, models)
                for row, result in found:
                    results[row.place] = result
            finally:
                turns.release()

        try:
            async with asyncio.TaskGroup() as tasks:
                for group in group_rows(good, self._shape.rows, self._shape.chars):
                    await turns.acquire()
                    tasks.create_task(settle(group))
                asked.set()
        except BaseExceptionGroup as group_of_errors:
            raise first_error(group_of_errors) from group_of_errors
        finally:
            asked.set()
        whole = tuple(result for result in results if result is not None)
        assert len(whole) == len(part.rows), "every row has a result"
        return ScoredPart(part, whole, tuple(sorted(models)))


@contextlib.contextmanager
def kafka_scorer(
    connection: dict[str, Any],
    settings: ClientSettings,
    options: AskOptions,
    shape: Shape,
    stop: Stop,
    watch: SilenceWatch,
) -> Iterator[KafkaScorer]:
    """A scorer with its loop's thread and its client; `connection` are Client's arguments. UserError where
    the cluster does not answer."""
    opened: Future[KafkaScorer] = Future()
    leave = threading.Event()

    async def serve() -> None:
        async with Client(**connection, settings=settings) as client:
            scorer = KafkaScorer(client, options, shape, stop)
            watching = asyncio.create_task(watch.run(scorer.asker.silent_s))
            opened.set_result(scorer)
            await asyncio.to_thread(leave.wait)
            watching.cancel()
            await scorer.cancel()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - a thread's end: who waits for the scorer hears of it
            if opened.done():
                stop.fail(error)
            else:
                opened.set_exception(error)

    thread = threading.Thread(target=run, name="bulk-kafka")
    thread.start()
    try:
        yield opened.result()
    except ClientError as error:
        raise UserError(str(error)) from error
    finally:
        leave.set()
        thread.join(CLOSE_S)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that ended the others."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
