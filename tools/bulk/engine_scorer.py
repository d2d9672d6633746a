"""Scoring in this process: tokenizer threads, batches as full as the model takes, lanes that never wait.

A part's rows are grouped in their order into requests, each prepared on a thread of the pool; requests are
packed in their order into batches up to the pipeline's capacity; `capacity.batches` of them are under way at
once, and one more waits. No batch holds rows of two parts and nothing depends on time, so that a part done
again comes out the same to the bit on one machine. A request that fails is tried again row by row: only the
row at fault keeps its error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from engine.demand import NOTHING
from engine.errors import InputError, NodeError
from engine.pipeline import Answer, Failure, Pipeline, Prepared, Result
from tools.bulk.relay import Stop
from tools.bulk.rows import GoodRow, Part, RowError, RowResult, ScoredPart
from worker.verdicts import failure_code

REQUESTS_A_BATCH = 8  # what a request may leave unused of a batch: an eighth, on average half of that
CHARS_A_TOKEN = 2  # fewer than in nearly all text: a request over the bounds is split and prepared again
SAMPLE_INDEX = re.compile(r"samples\[(\d+)\]")


@dataclass(frozen=True)
class Request:
    """Rows of one part, prepared together."""

    rows: Sequence[GoodRow]
    prepared: Prepared


class EngineScorer:
    """`start` is called by one thread and blocks while the lanes have enough to do."""

    def __init__(self, pipeline: Pipeline, threads: int, stop: Stop) -> None:
        self._pipeline = pipeline
        self._stop = stop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bulk-prepare")
        self._free = threading.Semaphore(pipeline.capacity.batches + 1)  # one waits: full, it misses nothing
        self._models = () if pipeline.model is None else (pipeline.model.digest,)
        capacity, bounds = pipeline.capacity, pipeline.bounds
        self._group_rows = max(1, min(bounds.samples, capacity.samples // REQUESTS_A_BATCH))
        tokens = max(
            bounds.tokens_per_sample, min(bounds.tokens_per_request, capacity.tokens // REQUESTS_A_BATCH)
        )
        self._group_chars = tokens * CHARS_A_TOKEN

    def start(self, part: Part) -> Future[ScoredPart]:
        """Hand every row of the part to the lanes; the future has the results. Raises Stopped."""
        scoring = _Scoring(part, self._models)
        groups = group_rows(part.good_rows(), self._group_rows, self._group_chars)
        preparing = [self._pool.submit(prepare_rows, self._pipeline, group) for group in groups]
        for batch in self._batches(scoring, preparing):
            self._submit(scoring, batch)
        scoring.all_submitted()
        return scoring.future

    def close(self) -> None:
        """End the tokenizer threads; the pipeline is its owner's to close."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _batches(
        self, scoring: _Scoring, preparing: Sequence[Future[list[Request | tuple[GoodRow, RowError]]]]
    ) -> Iterator[list[Request]]:
        capacity = self._pipeline.capacity
        batch: list[Request] = []
        taken = NOTHING
        for future in preparing:
            self._stop.check()
            for each in future.result():
                if not isinstance(each, Request):
                    scoring.settle(*each)
                    continue
                taken += each.prepared.demand
                if batch and (taken.tokens > capacity.tokens or taken.samples > capacity.samples):
                    yield batch
                    batch, taken = [], each.prepared.demand
                batch.append(each)
        if batch:
            yield batch

    def _submit(self, scoring: _Scoring, batch: Sequence[Request]) -> None:
        self._stop.until(lambda seconds: self._free.acquire(timeout=seconds))
        scoring.begin()
        future = self._pipeline.submit([request.prepared for request in batch])
        future.add_done_callback(lambda done: self._guarded(scoring, batch, done.result()))

    def _guarded(self, scoring: _Scoring, batch: Sequence[Request], results: Sequence[Result]) -> None:
        try:
            self._done(scoring, batch, results)
        except BaseException as error:  # noqa: BLE001 - a callback's end: unheard, the part would never be done
            self._stop.fail(error)

    def _done(self, scoring: _Scoring, batch: Sequence[Request], results: Sequence[Result]) -> None:
        """On a thread of the engine: store, and hand what is left to the pool."""
        self._free.release()
        again: list[Request] = []
        for request, result in zip(batch, results, strict=True):
            if isinstance(result, Answer):
                for row, answer in zip(request.rows, result.rows, strict=True):
                    scoring.settle(row, answer)
            elif len(request.rows) > 1 and not self._stop.is_set:
                again.append(request)
            else:
                for row in request.rows:
                    scoring.settle(row, failure(result))
        if again:
            self._pool.submit(self._one_by_one, scoring, again).add_done_callback(self._failed)
        else:
            scoring.end()

    def _one_by_one(self, scoring: _Scoring, requests: Sequence[Request]) -> None:
        """Each row in a batch of its own: what fails a whole batch fails alone then."""
        for request in requests:
            for row in request.rows:
                for each in prepare_rows(self._pipeline, [row]):
                    if isinstance(each, Request):
                        self._submit(scoring, [each])
                    else:
                        scoring.settle(*each)
        scoring.end()

    def _failed(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._stop.fail(error)


class _Scoring:
    """A part under way: results by place, and how many batches are still to end. Thread-safe."""

    def __init__(self, part: Part, models: tuple[str, ...]) -> None:
        self.future: Future[ScoredPart] = Future()
        self._part = part
        self._models = models
        self._results = part.first_results()
        self._left = 1  # the submitting itself
        self._lock = threading.Lock()

    def settle(self, row: GoodRow, result: RowResult) -> None:
        self._results[row.place] = result  # each place is written once

    def begin(self) -> None:
        with self._lock:
            self._left += 1

    def end(self) -> None:
        with self._lock:
            self._left -= 1
            done = self._left == 0
        if done:
            results = tuple(result for result in self._results if result is not None)
            assert len(results) == len(self._part.rows), "every row has a result"
            self.future.set_result(ScoredPart(self._part, results, self._models))

    all_submitted = end


def group_rows(rows: Sequence[GoodRow], max_rows: int, max_chars: int) -> Iterator[list[GoodRow]]:
    """The rows in their order, at most so many and about so many characters together."""
    group: list[GoodRow] = []
    num_chars = 0
    for row in rows:
        if group and (len(group) == max_rows or num_chars + row.num_chars > max_chars):
            yield group
            group, num_chars = [], 0
        group.append(row)
        num_chars += row.num_chars
    if group:
        yield group


def prepare_rows(pipeline: Pipeline, rows: Sequence[GoodRow]) -> list[Request | tuple[GoodRow, RowError]]:
    """Requests over these rows, and the rows that none can hold, each with its error."""
    try:
        return [Request(rows, pipeline.prepare([row.sample for row in rows]))]
    except InputError as error:
        if len(rows) > 1:
            place = sample_index(error.field)
            if place is None:
                middle = len(rows) // 2
                return prepare_rows(pipeline, rows[:middle]) + prepare_rows(pipeline, rows[middle:])
            found = row_error(failure_code(error.code), str(error), error.field)
            return [(rows[place], found), *prepare_rows(pipeline, [*rows[:place], *rows[place + 1 :]])]
        return [(rows[0], row_error(failure_code(error.code), str(error), error.field))]
    except NodeError as error:
        if len(rows) > 1:
            return [each for row in rows for each in prepare_rows(pipeline, [row])]
        return [(rows[0], row_error(failure_code(error.code), str(error), None))]


def sample_index(field: str | None) -> int | None:
    """Which sample of a request a field's path is about; None where it is about all."""
    found = SAMPLE_INDEX.match(field or "")
    return int(found.group(1)) if found else None


def row_error(code: str, message: str, field: str | None) -> RowError:
    """An error of a sample told as one of its row: without the sample's place in a request."""
    index = sample_index(field)
    if index is not None:
        name = f"samples[{index}]"
        message = message.replace(f"{name}.", "").replace(name, "the row")
        field = (field or "").removeprefix(name).removeprefix(".") or None
    return RowError(str(code), message, field)


def failure(result: Result) -> RowError:
    """Why the engine has no answer."""
    assert isinstance(result, Failure), "every request is wanted"
    return row_error(failure_code(result.code), result.message, result.field)
