"""Rows of an item file, in batches: Parquet or JSONL with the columns item_id and token_ids, streamed.

A batch is whole arrays: whatever looks at ten million rows never makes an object of each. Only JSONL does,
one a line. Rows count from 1; in JSONL they are the lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.errors import ItemFileError

ITEM_ID, TOKEN_IDS = "item_id", "token_ids"
PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 65_536
INT64 = range(-(2**63), 2**63)

Line: TypeAlias = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class ItemRows:
    """Rows first, first + 1, ...: row i's tokens are the next lengths[i] of `tokens`."""

    first: int
    ids: Any  # pa.Array of int64 or large_string
    lengths: NDArray[np.int64]
    tokens: NDArray[np.integer]

    def row_tokens(self, index: int) -> list[int]:
        start = int(self.lengths[:index].sum())
        found: list[int] = self.tokens[start : start + int(self.lengths[index])].tolist()
        return found


def read_rows(path: Path) -> Iterator[ItemRows]:
    """All rows; ItemFileError for a file, column or value that is no item."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(PARQUET_MAGIC))
    except OSError as error:
        raise ItemFileError(path, f"cannot be read: {error.strerror}") from error
    if not magic:
        raise ItemFileError(path, "is empty")
    yield from read_parquet(path) if magic == PARQUET_MAGIC else read_jsonl(path)


def read_parquet(path: Path) -> Iterator[ItemRows]:
    """One batch after the other; only the two columns are read."""
    first = 1
    try:
        with pq.ParquetFile(str(path)) as source:
            _check_columns(path, source.schema_arrow)
            for batch in source.iter_batches(BATCH_ROWS, columns=[ITEM_ID, TOKEN_IDS], use_threads=False):
                yield _parquet_rows(path, first, batch.column(ITEM_ID), batch.column(TOKEN_IDS))
                first += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise ItemFileError(path, f"no readable Parquet file from row {first} on: {error}") from error


def read_jsonl(path: Path) -> Iterator[ItemRows]:
    """One JSON object a line; blank lines only at the end."""
    lines = _json_lines(path)
    while batch := list(islice(lines, BATCH_ROWS)):
        first = batch[0][0]
        ids = _json_ids(path, batch)
        lists: list[Any] = [row.get(TOKEN_IDS) for _, row in batch]
        if set(map(type, lists)) != {list} or not set(map(type, chain.from_iterable(lists))) <= {int}:
            raise _wrong_list(path, batch)
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        try:
            tokens = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
        except OverflowError:
            raise _wrong_list(path, batch) from None
        yield ItemRows(first, ids, lengths, tokens)


def _check_columns(path: Path, schema: Any) -> None:
    for name in (ITEM_ID, TOKEN_IDS):
        if schema.names.count(name) != 1:
            count = "no" if name not in schema.names else "more than one"
            raise ItemFileError(path, f"has {count} column {name!r}; its columns: {', '.join(schema.names)}")
    ids, tokens = schema.field(ITEM_ID).type, schema.field(TOKEN_IDS).type
    if pa.types.is_dictionary(ids):
        ids = ids.value_type
    if not (pa.types.is_integer(ids) or _is_text(ids)):
        raise ItemFileError(path, "must be whole numbers or strings", field=ITEM_ID, value=str(ids))
    is_list = (
        pa.types.is_list(tokens) or pa.types.is_large_list(tokens) or pa.types.is_fixed_size_list(tokens)
    )
    if not (is_list and pa.types.is_integer(tokens.value_type)):
        raise ItemFileError(path, "must be lists of whole numbers", field=TOKEN_IDS, value=str(tokens))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _parquet_rows(path: Path, first: int, ids: Any, lists: Any) -> ItemRows:
    for name, column in ((ITEM_ID, ids), (TOKEN_IDS, lists)):
        if column.null_count:
            row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise ItemFileError(path, "is missing", row, name, None)
    flat = lists.flatten()
    lengths = _list_lengths(lists)
    if flat.null_count:
        place = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])
        index = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        raise ItemFileError(path, "has a null in it", first + index, TOKEN_IDS, lists[index].as_py())
    kind = ids.type.value_type if pa.types.is_dictionary(ids.type) else ids.type
    try:
        ids = ids.cast(pa.large_string() if _is_text(kind) else pa.int64())
    except pa.ArrowInvalid:
        large = np.flatnonzero(ids.to_numpy() > INT64[-1])[0]
        reason = "is no 64-bit integer"
        raise ItemFileError(path, reason, first + int(large), ITEM_ID, ids[int(large)].as_py()) from None
    return ItemRows(first, ids, lengths, flat.to_numpy())


def _list_lengths(lists: Any) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size, np.int64)
    offsets: NDArray[np.integer] = lists.offsets.to_numpy()
    return np.diff(offsets).astype(np.int64)


def _json_lines(path: Path) -> Iterator[Line]:
    """Line numbers and objects."""
    blank: int | None = None
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    blank = blank or number
                    continue
                if blank is not None:
                    raise ItemFileError(path, "is blank", blank)
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ItemFileError(path, f"{line.strip():.60} is no JSON object", number)
                yield number, row
    except UnicodeDecodeError as error:
        reason = "is neither Parquet nor JSON lines in UTF-8"
        raise ItemFileError(path, reason, number + 1) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ItemFileError):
            raise
        raise ItemFileError(path, f"is no JSON: {str(error)[:200]}", number) from error
    except OSError as error:
        raise ItemFileError(path, f"cannot be read on: {error.strerror}", number) from error


def _json_ids(path: Path, batch: Sequence[Line]) -> Any:
    """All strings or all integers."""
    values: list[Any] = [row.get(ITEM_ID) for _, row in batch]
    kinds = set(map(type, values))
    if kinds == {str}:
        return pa.array(values, pa.large_string())
    if kinds == {int} and min(values) in INT64 and max(values) in INT64:
        return pa.array(values, pa.int64())
    raise _wrong_id(path, batch)


def _wrong_id(path: Path, batch: Iterable[Line]) -> ItemFileError:
    """About the first of the batch's ids that is none."""
    expected: type | None = None
    for number, row in batch:
        value = row.get(ITEM_ID)
        if ITEM_ID not in row:
            return ItemFileError(
                path, f"is missing; the row has {', '.join(row) or 'nothing'}", number, ITEM_ID
            )
        if type(value) not in (int, str):
            return ItemFileError(path, "must be a whole number or a string", number, ITEM_ID, value)
        if isinstance(value, int) and value not in INT64:
            return ItemFileError(path, "is no 64-bit integer", number, ITEM_ID, value)
        if expected is not None and type(value) is not expected:
            kind = "strings" if expected is str else "whole numbers"
            return ItemFileError(path, f"the ids before it are {kind}", number, ITEM_ID, value)
        expected = type(value)
    raise AssertionError("all ids are good")


def _wrong_list(path: Path, batch: Iterable[Line]) -> ItemFileError:
    """About the first of the batch's lists that is none."""
    for number, row in batch:
        value = row.get(TOKEN_IDS)
        if TOKEN_IDS not in row:
            reason = f"is missing; the row has {', '.join(row) or 'nothing'}"
            return ItemFileError(path, reason, number, TOKEN_IDS)
        if not isinstance(value, list) or any(type(each) is not int or each not in INT64 for each in value):
            return ItemFileError(path, "must be a list of whole numbers", number, TOKEN_IDS, value)
    raise AssertionError("all lists are good")
