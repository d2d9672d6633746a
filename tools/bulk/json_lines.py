"""Reading JSONL as people have it: BOM, CRLF, blank lines, broken lines, gzip and zstd; in bounded memory.

A blank line is no row. A line that is not a JSON object in UTF-8 is a row with an error that tells its place.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from tools.bulk.broken_lines import readable_columns
from tools.bulk.columns import Columns
from tools.bulk.inputs import InputFile
from tools.bulk.rows import INVALID_ROW, Row, RowError, count_chars
from tools.errors import UserError

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20  # a file without line ends must not fill the memory
HEAD_BYTES = 1 << 16  # what is kept of a longer one, for its id
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    """Without its end; of one that is too long only the first HEAD_BYTES: not `whole`."""

    data: bytes
    whole: bool


class JsonLines:
    """The rows of JSONL files, one after the other. `share_read` may be asked by any thread."""

    def __init__(
        self, files: tuple[InputFile, ...], columns: Columns, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self._files = files
        self._columns = columns
        self._max_line_bytes = max_line_bytes
        self._total = sum(file.num_bytes for file in files)
        self._before = 0  # bytes of the files that are done
        self._raw: Any = None

    @property
    def share_read(self) -> float:
        """Of the input's bytes, as they lie on the disk."""
        within = 0 if self._raw is None or self._raw.closed else self._raw.tell()
        return min(1.0, (self._before + within) / self._total) if self._total else 1.0

    def rows(self, skip: int) -> Iterator[Row]:
        """All rows after the first `skip`. UserError for a file that cannot be read on."""
        number = 0
        for file in self._files:
            for line_number, line in enumerate(self._lines(file), start=1):
                if line.whole and not line.data.strip():
                    continue
                if number >= skip:
                    yield self._row(file, number, line_number, line)
                number += 1
            self._before += file.num_bytes

    def _row(self, file: InputFile, number: int, line_number: int, line: Line) -> Row:
        try:
            row = self._read(line)
        except ValueError as error:
            text = f"{file.name}, line {line_number}: {error}"
            row_id = self._columns.row_id(readable_columns(line.data), number)
            return Row(number, row_id, RowError(INVALID_ROW, text), 0)
        sample = self._columns.sample(row)
        return Row(number, self._columns.row_id(row, number), sample, count_chars(sample))

    def _read(self, line: Line) -> dict[str, Any]:
        """ValueError says why it is no row."""
        if not line.whole:
            raise ValueError(f"longer than {self._max_line_bytes} bytes")
        try:
            row = json.loads(line.data.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start + 1} of the line") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {str(error)[:200]}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{json.dumps(row)[:40]} is not a JSON object")
        return row

    def _lines(self, file: InputFile) -> Iterator[Line]:
        """Lines without their end."""
        if not file.num_bytes:
            return
        try:
            with self._open(file) as stream:
                yield from split_lines(stream, file, self._max_line_bytes)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"--input = {str(file.path)!r}: cannot be read on: {error}") from error

    @contextmanager
    def _open(self, file: InputFile) -> Iterator[Any]:
        with pa.OSFile(str(file.path)) as raw:
            self._raw = raw
            if file.kind.compression is None:
                yield raw
            else:
                with pa.CompressedInputStream(raw, file.kind.compression) as stream:
                    yield stream


def split_lines(stream: Any, file: InputFile, max_line_bytes: int) -> Iterator[Line]:
    """The lines of a stream; UserError for UTF-16, which has a byte of zero in every line end."""
    block = stream.read(BLOCK_BYTES)
    if block.startswith(UTF16):
        raise UserError(f"--input = {str(file.path)!r}: UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    block = block.removeprefix(codecs.BOM_UTF8)
    begun, head = b"", b""  # `head`: of a line that is too long already
    while block:
        lines = (begun + block).split(b"\n")
        begun = lines.pop()
        for line in lines:
            whole = not head and len(line) <= max_line_bytes
            yield Line(line if whole else head or line[:HEAD_BYTES], whole)
            head = b""
        if head or len(begun) > max_line_bytes:
            begun, head = b"", head or begun[:HEAD_BYTES]
        block = stream.read(BLOCK_BYTES)
    if begun or head:
        yield Line(head or begun, not head)
