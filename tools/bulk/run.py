"""A bulk run: reader, scorer and writer at once, a part at a time, from the journal's end to the final file.

Threads: the reader cuts parts; the caller's thread feeds the scorer, which blocks while it has enough; the
writer takes parts in order as they are done, writes and journals them. At most LOOK_AHEAD parts wait between
two of them, which bounds the memory.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.disk import writing
from tools.bulk.final_file import join_parts
from tools.bulk.inputs import Kind
from tools.bulk.part_files import write_part
from tools.bulk.progress import BulkProgress
from tools.bulk.reading import PartReader
from tools.bulk.relay import Relay, Stop, Stopped
from tools.bulk.rows import Part, RowError, ScoredPart
from tools.bulk.workspace import PartRecord, Workspace, put_in_place, sync

LOOK_AHEAD = 1


class Scorer(Protocol):
    """EngineScorer or KafkaScorer."""

    def start(self, part: Part) -> Future[ScoredPart]:
        """Begin a part; blocks while there is enough under way. Raises Stopped."""


@dataclass
class Tally:
    """What a run did. `cpu_s` is of the whole process; reading and writing are parts of it."""

    rows: int = 0
    rows_before: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # of each error's code, this run's first
    models: set[str] = field(default_factory=set)
    parts: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    read_cpu_s: float = 0.0
    write_cpu_s: float = 0.0

    @property
    def failed(self) -> int:
        return self.errors.total()

    def add(self, record: PartRecord) -> None:
        self.rows += record.num_rows
        self.errors.update(record.errors)
        self.models.update(record.models)
        self.parts += 1

    def summary(self) -> dict[str, object]:
        """Plain values for the JSON line."""
        done = self.rows - self.rows_before
        return {
            "rows": self.rows,
            "ok": self.rows - self.failed,
            "failed": self.failed,
            "errors": dict(sorted(self.errors.items())),
            "rows_of_earlier_runs": self.rows_before,
            "parts": self.parts,
            "models": sorted(self.models),
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(done / self.seconds, 1) if self.seconds else 0.0,
            "cpu_s": round(self.cpu_s, 3),
            "read_cpu_s": round(self.read_cpu_s, 3),
            "write_cpu_s": round(self.write_cpu_s, 3),
        }


class BulkRun:
    """One run over an open workspace."""

    def __init__(
        self, reader: PartReader, scorer: Scorer, workspace: Workspace, kind: Kind, stop: Stop
    ) -> None:
        self.tally = Tally()
        for record in workspace.records:
            self.tally.add(record)
        self.tally.rows_before = self.tally.rows
        self._reader = reader
        self._scorer = scorer
        self._workspace = workspace
        self._kind = kind
        self._stop = stop

    def run(self, progress: BulkProgress, output: Path) -> Tally:
        """Everything, until the final file is in place. Raises Stopped on a signal, with the journal true, or
        what any of the threads failed with."""
        started, cpu_started = time.perf_counter(), time.process_time()
        try:
            self._score(progress)
            joining = time.thread_time()
            files = [self._workspace.path(record.file) for record in self._workspace.records]
            beside = self._workspace.path("final.tmp")
            with writing(beside):
                join_parts(files, self._kind, beside, output)
            self.tally.write_cpu_s += time.thread_time() - joining
        finally:
            self.tally.seconds = time.perf_counter() - started
            self.tally.cpu_s = time.process_time() - cpu_started
            self.tally.read_cpu_s = self._reader.cpu_s
        return self.tally

    def _score(self, progress: BulkProgress) -> None:
        parts: Relay[Part] = Relay(LOOK_AHEAD, self._stop)
        scoring: Relay[Future[ScoredPart]] = Relay(LOOK_AHEAD, self._stop)
        reading = (parts, self._stop, len(self._workspace.records), self._workspace.rows_done)
        threads = [
            threading.Thread(target=self._reader.run, args=reading, name="bulk-read"),
            threading.Thread(target=self._write, args=(scoring, progress), name="bulk-write"),
        ]
        for thread in threads:
            thread.start()
        try:
            for part in parts:
                scoring.put(self._scorer.start(part))
            scoring.close()
        except BaseException as error:
            self._stop.fail(error)
            raise
        finally:
            for thread in threads:
                thread.join()
            if self._stop.error is not None:
                raise self._stop.error
        self._stop.check()

    def _write(self, scoring: Relay[Future[ScoredPart]], progress: BulkProgress) -> None:
        """The writer's thread. Once the run is to stop, what is done already is still written."""
        current: Future[ScoredPart] | None = None
        try:
            try:
                for current in scoring:
                    self._keep(self._wait(current), progress)
                    current = None  # noqa: PLW2901
            except Stopped:
                for future in [*([current] if current else []), *scoring.drain()]:
                    if not future.done():
                        break
                    self._keep(future.result(), progress)
        except BaseException as error:  # noqa: BLE001 - a thread's end: the run stops with this error
            self._stop.fail(error)

    def _wait(self, future: Future[ScoredPart]) -> ScoredPart:
        found: list[ScoredPart] = []

        def attempt(seconds: float) -> bool:
            try:
                found.append(future.result(seconds))
            except NotYet:
                return False
            return True

        self._stop.until(attempt)
        return found[0]

    def _keep(self, scored: ScoredPart, progress: BulkProgress) -> None:
        record = write_record(self._workspace, self._kind, scored)
        self.tally.add(record)
        if record.errors.keys() - self.tally.examples.keys():
            for row, result in zip(scored.part.rows, scored.results, strict=True):
                if isinstance(result, RowError):
                    self.tally.examples.setdefault(result.code, f"row {row.number}: {result.message[:160]}")
        self.tally.write_cpu_s = time.thread_time()
        progress.update(self.tally.rows, self.tally.failed, scored.part.share_read)


def write_record(workspace: Workspace, kind: Kind, scored: ScoredPart) -> PartRecord:
    """The part's file on the disk, then its line in the journal."""
    name = f"part-{scored.part.index:06d}.{kind.format}"
    path, beside = workspace.path(name), workspace.path(f"{name}.tmp")
    with writing(beside):
        scored = write_part(beside, kind, scored)
        with beside.open("rb+") as file:
            sync(file)
    put_in_place(beside, path)
    record = PartRecord(
        part=scored.part.index,
        first_row=scored.part.rows[0].number,
        num_rows=len(scored.part.rows),
        file=name,
        num_bytes=path.stat().st_size,
        errors=dict(count_errors(scored)),
        models=list(scored.models),
    )
    workspace.add(record)
    return record


def count_errors(scored: ScoredPart) -> Mapping[str, int]:
    """Failed rows by code."""
    return Counter(result.code for result in scored.results if isinstance(result, RowError))
