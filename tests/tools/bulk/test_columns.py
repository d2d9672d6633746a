"""Row ids: those that were asked for are there, or the row says so."""

from __future__ import annotations

import pytest

from tools.bulk.columns import Columns
from tools.bulk.rows import RowError

ROW = {"text": "red shoes", "key": "a", "nothing": None, "custom_id": "c"}


@pytest.mark.parametrize("column", ["nope", "nothing", "key.deeper"])
def test_a_row_without_the_id_asked_for_is_an_error_row(column: str) -> None:
    found = Columns({"text": "text"}, False, column).sample(ROW)
    assert isinstance(found, RowError)
    assert repr(column) in found.message


def test_a_row_without_any_field_says_which_the_pipeline_reads() -> None:
    found = Columns({"query": "query", "title": "name"}, False, None).sample({"q": "red shoes"})
    assert isinstance(found, RowError)
    wanted = "none of its columns is of use: 'q'; the pipeline reads 'query', 'title': --map FIELD=COLUMN"
    assert found.message == wanted


@pytest.mark.parametrize(("column", "row_id"), [("key", "a"), (None, "c")])
def test_ids(column: str | None, row_id: str) -> None:
    columns = Columns({"text": "text"}, False, column)
    assert not isinstance(columns.sample(ROW), RowError)
    assert columns.row_id(ROW, 7) == row_id


def test_a_row_of_its_own_accord_without_an_id_is_called_by_its_number() -> None:
    assert Columns({"text": "text"}, False, None).row_id({"text": "x"}, 7) == 7
