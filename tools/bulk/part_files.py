"""Part files: results of a part as JSONL (in the form of OpenAI's batch results) or as a Parquet table.

JSONL: {"custom_id", "row", "response": {"status_code": 200, "body": RESULT}, "error": null}, or response null
and error {"code", "message", "field"}. Parquet: id, row, the result's keys, error_code, error_message,
error_field. Bytes in a result are base64 in JSONL. Values of one key without a common type become JSON text.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.messages import ErrorCode
from tools.bulk.inputs import Kind
from tools.bulk.rows import Row, RowError, RowResult, ScoredPart

ERROR_COLUMNS = ("error_code", "error_message", "error_field")
RESERVED = {"id", "row", *ERROR_COLUMNS}
GZIP_LEVEL = 4  # level 9 takes four times as long for 3% less


def write_part(path: Path, kind: Kind, scored: ScoredPart) -> ScoredPart:
    """Write a part's file, not synced; the part as written: a result that JSON cannot hold is an error."""
    if kind.format == "parquet":
        pq.write_table(table_of(scored), str(path), compression="zstd")
        return scored
    content, written = lines_of(scored)
    path.write_bytes(compress(content, kind))
    return written


def compress(content: bytes, kind: Kind) -> bytes:
    """One member (gzip) or frame (zstd): files of these can be put end to end."""
    if kind.compression == "gzip":
        return gzip.compress(content, GZIP_LEVEL, mtime=0)  # without the time: the same part, the same bytes
    if kind.compression == "zstd":
        packed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
        return packed
    return content


def lines_of(scored: ScoredPart) -> tuple[bytes, ScoredPart]:
    """One line a row, each ended; and what they say."""
    lines, results = [], list(scored.results)
    for place, row in enumerate(scored.part.rows):
        try:
            lines.append(_encode(_line(row, results[place])))
        except (
            TypeError,
            ValueError,
        ) as error:  # NaN, or a key that is no text, from a node of the user's own
            results[place] = RowError(ErrorCode.INTERNAL, f"the result cannot be written as JSON: {error}")
            lines.append(_encode(_line(row, results[place])))
    return b"".join(lines), replace(scored, results=tuple(results))


def table_of(scored: ScoredPart) -> Any:
    """The table of a part; its types are those of its own values."""
    rows, results = scored.part.rows, scored.results
    errors = [result if isinstance(result, RowError) else None for result in results]
    answers = [None if isinstance(result, RowError) else result for result in results]
    columns = {
        "id": _id_array([row.id for row in rows]),
        "row": pa.array([row.number for row in rows], pa.int64()),
    }
    for key in dict.fromkeys(key for answer in answers if answer is not None for key in answer):
        values = [None if answer is None else answer.get(key) for answer in answers]
        columns[f"{key}_" if key in RESERVED else key] = array_of(values)
    for place, name in enumerate(("code", "message", "field")):
        texts = [None if error is None else _text(getattr(error, name)) for error in errors]
        columns[ERROR_COLUMNS[place]] = pa.array(texts, pa.string())
    return pa.table(columns)


def array_of(values: Sequence[object]) -> Any:
    """An array of the type that fits all; JSON text where there is none."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.array([None if value is None else as_json(value) for value in values], pa.string())


def as_json(value: object) -> str:
    return json.dumps(value, default=_plain)


def _line(row: Row, result: RowResult) -> dict[str, Any]:
    if isinstance(result, RowError):
        return {"custom_id": row.id, "row": row.number, "response": None, "error": result._asdict()}
    response = {"status_code": 200, "body": result}
    return {"custom_id": row.id, "row": row.number, "response": response, "error": None}


def _encode(line: dict[str, Any]) -> bytes:
    try:
        return json.dumps(line, ensure_ascii=False, allow_nan=False, default=_plain).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which JSON can name and UTF-8 cannot
        return json.dumps(line, allow_nan=False, default=_plain).encode() + b"\n"


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _id_array(ids: Iterable[str | int | None]) -> Any:
    ids = list(ids)
    if all(each is None or (isinstance(each, int) and -(2**63) <= each < 2**63) for each in ids):
        return pa.array(ids, pa.int64())
    return pa.array([_text(each) for each in ids], pa.string())


def _text(value: object) -> str | None:
    return None if value is None else str(value).encode(errors="replace").decode()
