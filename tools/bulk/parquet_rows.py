"""Reading Parquet row group by row group, only the columns that are needed, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tools.bulk.columns import Columns, Wanted, open_columns
from tools.bulk.inputs import InputFile
from tools.bulk.rows import Row, count_chars
from tools.errors import UserError

MAX_BATCH_ROWS = 4096
BATCH_BYTES = 8 << 20  # of decoded values, as far as the file tells
READ_BYTES = 1 << 20  # a column is read in pieces of this, however long its row group is


class ParquetRows:
    """The rows of Parquet files, one after the other. `share_read` may be asked by any thread."""

    def __init__(self, files: tuple[InputFile, ...], columns: Columns) -> None:
        self._files = files
        self._columns = columns
        self._counts = [self._count(file) for file in files]
        self._done = 0

    @property
    def num_rows(self) -> int:
        return sum(self._counts)

    @property
    def share_read(self) -> float:
        """Of the input's rows."""
        return self._done / self.num_rows if self.num_rows else 1.0

    def check(self, wanted: Wanted) -> None:
        """UserError unless every file has the columns that were named, and those of one template."""
        for file in self._files:
            with opened(file) as source:
                check_schema(file, source.schema_arrow, self._columns, wanted)

    def rows(self, skip: int) -> Iterator[Row]:
        """All rows after the first `skip`. UserError for a file that cannot be read on."""
        number = 0
        for file, count in zip(self._files, self._counts, strict=True):
            if number + count <= skip:
                number += count
            else:
                for values in self._values(file, skip - number):
                    at = max(number, skip)
                    self._done = at
                    yield self._row(values, at)
                    number = at + 1
        self._done = number

    def _row(self, values: dict[str, Any], number: int) -> Row:
        sample = self._columns.sample(values)
        return Row(number, self._columns.row_id(values, number), sample, count_chars(sample))

    def _values(self, file: InputFile, skip: int) -> Iterator[dict[str, Any]]:
        with opened(file) as source:
            names = self._columns.top_level(source.schema_arrow.names)
            for group in range(source.num_row_groups):
                metadata = source.metadata.row_group(group)
                if skip >= metadata.num_rows:
                    skip -= metadata.num_rows
                    continue
                size = batch_rows(metadata)
                for batch in source.iter_batches(size, row_groups=[group], columns=names, use_threads=False):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    kept = batch.slice(max(skip, 0))
                    skip = 0
                    lists = [column.to_pylist() for column in kept.columns]
                    for cells in zip(*lists, strict=True) if lists else [()] * kept.num_rows:
                        yield dict(zip(names, cells, strict=True))

    @staticmethod
    def _count(file: InputFile) -> int:
        with opened(file) as source:
            return int(source.metadata.num_rows)


@contextmanager
def opened(file: InputFile) -> Iterator[Any]:
    """The file, open; UserError for what is no Parquet file or breaks off."""
    try:
        with pq.ParquetFile(str(file.path), buffer_size=READ_BYTES, pre_buffer=False) as source:
            yield source
    except (OSError, pa.ArrowException) as error:
        text = "is empty: no Parquet file" if not file.num_bytes else f"cannot be read: {error}"
        raise UserError(f"--input = {str(file.path)!r}: {text}") from error


def batch_rows(metadata: Any) -> int:
    """How many rows of a row group to decode at once."""
    each = metadata.total_byte_size // max(metadata.num_rows, 1) + 1
    return int(min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // each)))


def check_schema(file: InputFile, schema: Any, columns: Columns, wanted: Wanted) -> None:
    """UserError about the first thing that no row of this file can have."""
    example = open_columns(example_row(schema))
    known = ", ".join(example)
    if columns.id is not None and not has(example_row(schema), columns.id):
        raise UserError(f"--id = {columns.id!r}: {file.name} has no such column; its columns: {known}")
    for field, path in columns.paths.items():
        if path != field and not has(example, path):
            raise UserError(
                f"--map = {f'{field}={path}'!r}: {file.name} has no such column; its columns: {known}"
            )
    if wanted.templates is None or (wanted.token_ids and has(example, "token_ids")):
        return
    lacking = [
        [field for field in each if not has(example, columns.paths[field])] for each in wanted.templates
    ]
    if lacking and all(lacking):
        field = min(lacking, key=len)[0]
        text = (
            f"the pipeline reads {field!r} and {file.name} has no such column; name one: --map {field}=COLUMN"
        )
        raise UserError(f"{text}. Its columns: {known}")


def example_row(schema: Any) -> dict[str, object]:
    """A row with every column of a schema, structs as maps and everything else as a name."""
    return {field.name: _example(field.type) for field in schema}


def _example(kind: Any) -> object:
    if not pa.types.is_struct(kind):
        return ""
    return {kind.field(place).name: _example(kind.field(place).type) for place in range(kind.num_fields)}


def has(columns: Any, path: str) -> bool:
    """Whether a column, or a path with dots, is there."""
    value: object = columns
    for key in [path] if path in columns else path.split("."):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True
