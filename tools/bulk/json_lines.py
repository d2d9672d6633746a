"""Reading JSONL as people have it: BOM, CRLF, blank lines, broken lines, gzip and zstd; in bounded memory.

A blank line is no row. A line that is not a JSON object in UTF-8 is a row with an error that tells its place.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tools.bulk.columns import Columns
from tools.bulk.inputs import InputFile
from tools.bulk.rows import INVALID_ROW, Row, RowError, count_chars
from tools.errors import UserError

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20  # a file without line ends must not fill the memory
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
                if line is not None and not line.strip():
                    continue
                if number >= skip:
                    yield self._row(file, number, line_number, line)
                number += 1
            self._before += file.num_bytes

    def _row(self, file: InputFile, number: int, line_number: int, line: bytes | None) -> Row:
        where = f"{file.name}, line {line_number}"
        if line is None:
            text = f"{where}: longer than {self._max_line_bytes} bytes"
            return Row(number, number, RowError(INVALID_ROW, text), 0)
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            text = f"{where}: not UTF-8 at byte {error.start + 1} of the line"
            return Row(number, number, RowError(INVALID_ROW, text), 0)
        except (ValueError, RecursionError) as error:
            text = f"{where}: not JSON: {str(error)[:200]}"
            return Row(number, number, RowError(INVALID_ROW, text), 0)
        if not isinstance(row, dict):
            text = f"{where}: {json.dumps(row)[:40]} is not a JSON object"
            return Row(number, number, RowError(INVALID_ROW, text), 0)
        sample = self._columns.sample(row)
        return Row(number, self._columns.row_id(row, number), sample, count_chars(sample))

    def _lines(self, file: InputFile) -> Iterator[bytes | None]:
        """Lines without their end; None for one that is too long."""
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


def split_lines(stream: Any, file: InputFile, max_line_bytes: int) -> Iterator[bytes | None]:
    """The lines of a stream; UserError for UTF-16, which has a byte of zero in every line end."""
    block = stream.read(BLOCK_BYTES)
    if block.startswith(UTF16):
        raise UserError(f"--input = {str(file.path)!r}: UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    block = block.removeprefix(codecs.BOM_UTF8)
    begun, too_long = b"", False
    while block:
        lines = (begun + block).split(b"\n")
        begun = lines.pop()
        for line in lines:
            yield None if too_long or len(line) > max_line_bytes else line
            too_long = False
        if too_long or len(begun) > max_line_bytes:
            begun, too_long = b"", True
        block = stream.read(BLOCK_BYTES)
    if begun or too_long:
        yield None if too_long else begun
