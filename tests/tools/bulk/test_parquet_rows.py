"""Parquet as people have it: row groups, nested and typed columns, files without rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.pipeline import PipelineConfig
from tools.bulk.columns import Columns, Wanted
from tools.bulk.inputs import find_inputs
from tools.bulk.parquet_rows import ParquetRows
from tools.bulk.rows import BulkSample, RowError
from tools.errors import UserError

EVERYTHING = Columns({}, True, None)


def table(path: Any, **columns: Any) -> Any:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return find_inputs(path)


def test_parquet_by_row_group_from_any_row(tmp_path: Any) -> None:
    files = table(tmp_path / "a.parquet", text=[f"t{n}" for n in range(10)], other=[[1]] * 10)
    source = ParquetRows(files, Columns({"text": "text"}, False, None))
    for skip in range(11):
        assert [row.sample.text for row in source.rows(skip)] == [f"t{n}" for n in range(skip, 10)]
    assert source.share_read == 1.0


def test_parquet_nested_null_and_typed_columns(tmp_path: Any) -> None:
    files = table(
        tmp_path / "a.parquet",
        key=pa.array([7, None]),
        item=pa.array([{"name": "a", "size": 3}, None]),
        price=pa.array([1.5, float("nan")]),
        day=pa.array([19_000, None], pa.int32()).cast(pa.date32()),
        raw=pa.array([b"caf\xc3\xa9", b"\xff"]),
    )
    paths = {"name": "item.name", "price": "price", "day": "day"}
    found = list(ParquetRows(files, Columns(paths, False, "key")).rows(0))
    assert found[0].sample.fields == {"name": "a", "price": 1.5, "day": "2022-01-08"}
    assert found[0].id == 7
    assert isinstance(found[1].sample, RowError)  # nothing but nulls
    assert found[1].id is None  # not its number, which may be another row's id
    found = list(ParquetRows(files, Columns({"text": "raw"}, False, None)).rows(0))
    assert found[0].sample == BulkSample(text="café")
    assert found[1].sample.message == "raw: bytes that are not UTF-8 text"


def test_parquet_without_rows_and_without_content(tmp_path: Any) -> None:
    files = table(tmp_path / "a.parquet", text=pa.array([], pa.string()))
    assert list(ParquetRows(files, EVERYTHING).rows(0)) == []
    (tmp_path / "b.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"b\.parquet': is empty: no Parquet file"):
        ParquetRows(find_inputs(tmp_path / "b.parquet"), EVERYTHING)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"b\.parquet': cannot be read: "):
        ParquetRows(find_inputs(tmp_path / "b.parquet"), EVERYTHING)


def test_a_parquet_file_without_the_columns_is_refused_before_anything_is_loaded(tmp_path: Any) -> None:
    files = table(tmp_path / "a.parquet", query=["q"], name=["n"])
    wanted = Wanted.of(pipeline("{query} {title}"))
    columns = Columns.choose(wanted, {}, None)
    with pytest.raises(
        UserError, match=r"reads 'title' and a\.parquet has no such column.*--map title=COLUMN"
    ):
        ParquetRows(files, columns).check(wanted)
    ParquetRows(files, Columns.choose(wanted, {"title": "name"}, "query")).check(wanted)
    with pytest.raises(UserError, match=r"--map = 'title=nome': a\.parquet has no such column"):
        ParquetRows(files, Columns.choose(wanted, {"title": "nome"}, None)).check(wanted)
    with pytest.raises(
        UserError, match=r"--id = 'key': a\.parquet has no such column; its columns: query, name"
    ):
        ParquetRows(files, Columns.choose(wanted, {"title": "name"}, "key")).check(wanted)
    with pytest.raises(UserError, match="the pipeline reads query, title, not titel"):
        Columns.choose(wanted, {"titel": "name"}, None)


def pipeline(*templates: str) -> PipelineConfig:
    nodes = {"prompt": {"kind": "tokenizer", "artifact": "x", "template": list(templates)}}
    bounds = {"samples": 1, "tokens_per_sample": 1, "tokens_per_request": 1}
    return PipelineConfig.model_validate({"name": "p", "bounds": bounds, "nodes": nodes})
