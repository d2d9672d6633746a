"""Rows whose id could not be read: null, in both formats, and the other ids keep their type."""

from __future__ import annotations

import json

import pytest

from tools.bulk.part_files import lines_of, table_of
from tools.bulk.rows import INVALID_ROW, BulkSample, Part, Row, RowError, ScoredPart


@pytest.mark.parametrize(("row_id", "kind"), [(7, "int64"), ("a", "string")])
def test_an_id_that_could_not_be_read(row_id: str | int, kind: str) -> None:
    error = RowError(INVALID_ROW, "broken")
    rows = (Row(0, row_id, BulkSample("x"), 1), Row(1, None, error, 0))
    scored = ScoredPart(Part(0, rows, 1.0), ({"number": 1}, error))
    table = table_of(scored)
    assert (table["id"].to_pylist(), str(table.schema.field("id").type)) == ([row_id, None], kind)
    lines = [json.loads(line) for line in lines_of(scored)[0].splitlines()]
    assert [(line["custom_id"], line["row"]) for line in lines] == [(row_id, 0), (None, 1)]
