"""One final file from the parts, in bounded memory, put in place at once.

JSONL parts are put end to end (compressed ones, too: members and frames may follow each other). Parquet parts
are read one after the other, brought to one schema and written in larger row groups.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tools.bulk.inputs import Kind
from tools.bulk.part_files import array_of, as_json, compress, table_of
from tools.bulk.rows import Part, ScoredPart
from tools.bulk.workspace import put_in_place, sync

GROUP_ROWS = 1 << 16
GROUP_BYTES = 64 << 20
EMPTY = ScoredPart(Part(0, (), 1.0), ())


def join_parts(parts: Sequence[Path], kind: Kind, beside: Path, output: Path) -> None:
    """Write `beside`, then rename it to `output`: whoever looks sees nothing or everything."""
    if kind.format == "parquet":
        join_tables(parts, beside)
        with beside.open("rb+") as file:
            sync(file)
    else:
        with beside.open("wb") as file:
            if not parts:
                file.write(compress(b"", kind))
            for part in parts:
                with part.open("rb") as content:
                    shutil.copyfileobj(content, file, 1 << 20)
            sync(file)
    if output.exists():
        shutil.copymode(output, beside)
    put_in_place(beside, output)


def join_tables(parts: Sequence[Path], beside: Path) -> None:
    """One Parquet file with the rows of all parts."""
    schemas = [pq.read_schema(str(part)) for part in parts] or [table_of(EMPTY).schema]
    schema = common_schema(schemas)
    with pq.ParquetWriter(str(beside), schema, compression="zstd") as writer:
        for table in _groups(parts, schema):
            writer.write_table(table, row_group_size=GROUP_ROWS)


def common_schema(schemas: Sequence[Any]) -> Any:
    """Every column of every part, in the order of their first appearance, errors last; text where two parts'
    types have nothing in common."""
    kinds: dict[str, Any] = {}
    for schema in schemas:
        for field in schema:
            kinds[field.name] = _common(kinds.get(field.name, pa.null()), field.type)
    last = [name for name in kinds if name.startswith("error_")]
    names = [*(name for name in kinds if name not in last), *last]
    return pa.schema(
        [(name, pa.string() if pa.types.is_null(kinds[name]) else kinds[name]) for name in names]
    )


def _common(first: Any, second: Any) -> Any:
    try:
        pair = [pa.schema([("x", first)]), pa.schema([("x", second)])]
        return pa.unify_schemas(pair, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return pa.string()


def _groups(parts: Sequence[Path], schema: Any) -> Iterator[Any]:
    waiting: list[Any] = []
    for part in parts:
        waiting.append(brought_to(pq.read_table(str(part), use_threads=False), schema))
        if (
            sum(table.num_rows for table in waiting) >= GROUP_ROWS
            or sum(table.nbytes for table in waiting) >= GROUP_BYTES
        ):
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def brought_to(table: Any, schema: Any) -> Any:
    """The table with the columns and types of `schema`."""
    columns = []
    for field in schema:
        if field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        columns.append(column if column.type == field.type else _converted(column, field))
    return pa.table(columns, schema=schema)


def _converted(column: Any, field: Any) -> Any:
    nested = pa.types.is_nested(column.type) or pa.types.is_binary(column.type)
    if not (pa.types.is_string(field.type) and nested):
        return column.cast(field.type)
    return array_of([None if value is None else as_json(value) for value in column.to_pylist()])
