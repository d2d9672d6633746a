"""The reader's thread: rows from the input, cut into parts, handed on through a relay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from tools.bulk.relay import Relay, Stop
from tools.bulk.rows import Part, Row


class RowSource(Protocol):
    """JsonLines or ParquetRows."""

    @property
    def share_read(self) -> float: ...
    def rows(self, skip: int) -> Iterator[Row]: ...


class PartReader:
    """Parts of at most `part_rows` rows and about `part_chars` characters, the same for the same input."""

    def __init__(self, source: RowSource, part_rows: int, part_chars: int) -> None:
        self.cpu_s = 0.0
        self._source = source
        self._part_rows = part_rows
        self._part_chars = part_chars

    def run(self, relay: Relay[Part], stop: Stop, next_part: int, rows_done: int) -> None:
        """The thread's whole work; what fails goes to `stop`."""
        try:
            parts = self.parts(next_part, rows_done, stop)
            while True:
                part = next(parts, None)
                self.cpu_s = time.thread_time()
                if part is None:
                    relay.close()
                    return
                relay.put(part)
        except BaseException as error:  # noqa: BLE001 - a thread's end: the run stops with this error
            stop.fail(error)

    def parts(self, index: int, rows_done: int, stop: Stop) -> Iterator[Part]:
        """All parts after the rows that are done."""
        rows: list[Row] = []
        num_chars = 0
        for row in self._source.rows(rows_done):
            rows.append(row)
            num_chars += row.num_chars
            if len(rows) == self._part_rows or num_chars >= self._part_chars:
                stop.check()
                yield Part(index, tuple(rows), self._source.share_read)
                index, rows, num_chars = index + 1, [], 0
        if rows:
            yield Part(index, tuple(rows), self._source.share_read)
