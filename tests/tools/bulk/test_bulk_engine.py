"""`boundgen bulk` through the engine, from the command line to the final file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def test_jsonl_in_and_out(desk: Any) -> None:
    desk.write_rows("in.jsonl", range(100))
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "16")
    assert (outcome.status, outcome.summary["rows"], outcome.summary["failed"]) == (0, 100, 0)
    assert outcome.summary["parts"] == 7
    assert desk.read("out.jsonl") == [
        {
            "custom_id": f"id-{number}",
            "row": number,
            "response": {"status_code": 200, "body": {"number": number}},
            "error": None,
        }
        for number in range(100)
    ]
    assert not desk.path("out.jsonl.bulk").exists()


def test_parquet_in_and_out(desk: Any) -> None:
    table = pa.table(
        {"key": [f"k{n}" for n in range(50)], "number": [str(n) for n in range(50)], "x": [0.5] * 50}
    )
    pq.write_table(table, desk.path("in.parquet"), row_group_size=7)
    outcome = desk.bulk(
        "in.parquet", "out.parquet", "--map", "text=number", "--id", "key", "--part-rows", "16"
    )
    assert outcome.status == 0, outcome.told
    found = pq.read_table(desk.path("out.parquet"))
    assert found.schema.names == ["id", "row", "number", "error_code", "error_message", "error_field"]
    assert found["id"].to_pylist() == table["key"].to_pylist()
    assert found["number"].to_pylist() == list(range(50))
    assert found["error_code"].null_count == 50


def test_bad_rows_become_error_rows_and_their_neighbours_do_not(desk: Any) -> None:
    desk.write_rows("in.jsonl", [0, 1, "two", 3, "four", 5])
    outcome = desk.bulk("in.jsonl", "out.jsonl")
    assert (outcome.status, outcome.summary["ok"], outcome.summary["failed"]) == (1, 4, 2)
    assert outcome.summary["errors"] == {"invalid_field": 2}
    assert "2 invalid_field, such as row 2: 'two' is not a number" in outcome.told
    found = desk.read("out.jsonl")
    assert [row["custom_id"] for row in found] == [f"id-{place}" for place in range(6)]
    assert [row["response"] is None for row in found] == [False, False, True, False, True, False]
    assert "'two' is not a number" in found[2]["error"]["message"]
