"""Beginning, stopping, going on, and what a run refuses to do."""

from __future__ import annotations

import gzip
import json
import signal
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tools.bulk.final_file import join_parts
from tools.bulk.inputs import Kind
from tools.bulk.part_files import write_part
from tools.bulk.rows import BulkSample, Part, Row, RowError, ScoredPart
from tools.bulk.workspace import PartRecord, Workspace
from tools.errors import UserError


def started(desk: Any, parts: int = 1) -> Any:
    """A slow run that has finished some parts."""
    desk.configure(sleep_ms=20)
    desk.write_rows("in.jsonl", range(2000))
    process = desk.start("in.jsonl", "out.jsonl", "--part-rows", "64")
    journal = desk.path("out.jsonl.bulk") / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b"\n") <= parts:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_the_same_command_goes_on(desk: Any, number: signal.Signals) -> None:
    process = started(desk)
    assert process.pid is not None
    import os

    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode == 128 + number
    assert not desk.path("out.jsonl").exists()
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "64")
    assert outcome.status == 0
    assert outcome.summary["rows_of_earlier_runs"] >= 64
    assert [row["response"]["body"]["number"] for row in desk.read("out.jsonl")] == list(range(2000))


def test_two_runs_on_one_output_refuse_and_a_dead_one_holds_nothing(desk: Any) -> None:
    process = started(desk)
    desk.path("same.jsonl").symlink_to("out.jsonl")
    for name in ("out.jsonl", "same.jsonl"):
        outcome = desk.bulk("in.jsonl", name, "--part-rows", "64")
        assert outcome.status == 2
        assert f"another run writes to this output: process {process.pid} holds" in outcome.told
    process.kill()
    process.join()
    assert desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "64").status == 0


def test_a_run_goes_on_only_with_what_it_began_with(desk: Any) -> None:
    process = started(desk)
    process.kill()
    process.join()
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "32")
    assert outcome.status == 2
    assert "holds an unfinished run with other part_rows;" in outcome.told
    desk.write_rows("in.jsonl", range(100))
    desk.configure()
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "64")
    assert "holds an unfinished run with other input, pipeline;" in outcome.told
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "64", "--restart")
    assert (outcome.status, outcome.summary["rows"]) == (0, 100)
    assert outcome.summary["rows_of_earlier_runs"] == 0


def test_what_is_damaged_is_told(desk: Any) -> None:
    process = started(desk)
    process.kill()
    process.join()
    journal = desk.path("out.jsonl.bulk") / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_text("{nonsense\n")
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "64")
    assert outcome.status == 2
    assert f"{journal} is damaged; throw the unfinished run away: --restart" in outcome.told
    journal.write_bytes(whole)
    part = journal.with_name("part-000000.jsonl")
    part.unlink()
    outcome = desk.bulk("in.jsonl", "out.jsonl", "--part-rows", "64")
    assert (outcome.status, outcome.summary["rows_of_earlier_runs"]) == (0, 0)
    assert f"{part} is missing: its rows and those after it, " in outcome.told


def test_an_output_that_exists_is_replaced_only_when_told_to(desk: Any) -> None:
    desk.write_rows("in.jsonl", range(3))
    desk.path("out.jsonl").write_text("mine")
    outcome = desk.bulk("in.jsonl", "out.jsonl")
    assert outcome.status == 2
    assert "exists; another name, or --overwrite" in outcome.told
    assert desk.path("out.jsonl").read_text() == "mine"
    assert not desk.path("out.jsonl.bulk").exists()
    assert desk.bulk("in.jsonl", "out.jsonl", "--overwrite").status == 0
    assert len(desk.read("out.jsonl")) == 3


def test_an_empty_file_gives_an_empty_one(desk: Any) -> None:
    desk.path("in.jsonl").write_text("\n\n")
    for name in ("out.jsonl", "out.jsonl.gz", "out.parquet"):
        outcome = desk.bulk("in.jsonl", name)
        assert (outcome.status, outcome.summary["rows"]) == (0, 0)
    assert desk.path("out.jsonl").read_bytes() == b""
    assert gzip.decompress(desk.path("out.jsonl.gz").read_bytes()) == b""
    assert pq.read_table(desk.path("out.parquet")).num_rows == 0


def test_compressed_results_hold_the_same_lines(desk: Any) -> None:
    desk.write_rows("in.jsonl", range(100))
    for name in ("out.jsonl", "out.jsonl.gz", "out.jsonl.zst"):
        assert desk.bulk("in.jsonl", name, "--part-rows", "16").status == 0
    plain = desk.path("out.jsonl").read_bytes()
    assert gzip.decompress(desk.path("out.jsonl.gz").read_bytes()) == plain
    with pa.CompressedInputStream(pa.OSFile(str(desk.path("out.jsonl.zst"))), "zstd") as stream:
        assert stream.read() == plain


def test_rows_of_a_megabyte_make_parts_of_few_rows(desk: Any) -> None:
    rows = [{"text": "9" * (1 << 20)}, *({"text": str(number)} for number in range(40))]
    content = "".join(json.dumps(row) + "\n" for row in rows * 20)
    desk.path("in.jsonl").write_text(content)
    outcome = desk.bulk("in.jsonl", "out.jsonl")
    assert outcome.summary["rows"] == 820
    assert outcome.summary["parts"] == 2  # of 16 MB each


def scored(index: int, results: list[Any], ids: list[Any] | None = None) -> ScoredPart:
    rows = [
        Row(index * 10 + place, (ids or list(range(10)))[place], BulkSample(text="x"), 1)
        for place in range(len(results))
    ]
    return ScoredPart(Part(index, tuple(rows), 1.0), tuple(results))


def test_parquet_parts_of_different_types_become_one_table(tmp_path: Any) -> None:
    kind = Kind("parquet", None)
    parts = [
        scored(
            0, [RowError("invalid_row", "why", None), RowError("invalid_row", "\ud800", "f")], ["a", "\ud800"]
        ),
        scored(1, [{"scores": {"yes": 1}, "value": 1, "row": "x"}, {"scores": {"no": 0.5}, "value": 2}]),
        scored(2, [{"scores": {"yes": 1.5, "no": 2.5}, "value": "high"}, {"value": None}]),
        scored(3, [{"value": [1]}, {"value": 1 << 70, "vector": [0.5, 1]}]),
    ]
    paths = []
    for place, part in enumerate(parts):
        paths.append(tmp_path / f"{place}.parquet")
        write_part(paths[-1], kind, part)
    join_parts(paths, kind, tmp_path / "beside", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found["id"].to_pylist() == ["a", "?", "0", "1", "0", "1", "0", "1"]
    assert found["row"].to_pylist() == [0, 1, 10, 11, 20, 21, 30, 31]
    assert found["row_"].to_pylist()[2] == "x"
    assert found["scores"].to_pylist()[2:5] == [
        {"yes": 1.0, "no": None},
        {"yes": None, "no": 0.5},
        {"yes": 1.5, "no": 2.5},
    ]
    assert found["value"].to_pylist() == [None, None, "1", "2", "high", None, "[1]", "1180591620717411303424"]
    assert found["vector"].to_pylist()[-1] == [0.5, 1.0]
    assert found["error_code"].to_pylist() == ["invalid_row"] * 2 + [None] * 6


def test_results_that_json_cannot_hold_are_errors_and_bytes_are_base64(tmp_path: Any) -> None:
    results = [
        {"x": float("nan")},
        {"x": b"\x00\xff"},
        {(1, 2): "x"},
        {"x": {"y"}},
        {"x": "caf\u00e9 \ud800"},
    ]
    written = write_part(tmp_path / "x", Kind("jsonl", None), scored(0, results))
    lines = [json.loads(line) for line in (tmp_path / "x").read_bytes().splitlines()]
    assert [isinstance(each, RowError) for each in written.results] == [True, False, True, False, False]
    assert [line["response"] is None for line in lines] == [True, False, True, False, False]
    assert lines[0]["error"]["code"] == "internal"
    assert [lines[place]["response"]["body"]["x"] for place in (1, 3, 4)] == [
        "AP8=",
        "{'y'}",
        "caf\u00e9 \ud800",
    ]


def test_a_journal_is_believed_as_far_as_its_files_are_whole(tmp_path: Any) -> None:
    output = tmp_path / "out.jsonl"
    with Workspace(output) as workspace:
        workspace.open({"run": 1}, restart=False, may_begin=lambda: None)
        for number in range(3):
            workspace.path(f"{number}").write_text("whole")
            workspace.add(PartRecord(number, number * 4, 4, f"{number}", 5, {}, []))
    journal = tmp_path / "out.jsonl.bulk" / "journal.jsonl"
    with journal.open("a") as file:
        file.write('{"part": 3, "first')
    (tmp_path / "out.jsonl.bulk" / "3").write_text("of a part that was not journalled")
    with Workspace(output) as workspace:
        workspace.open({"run": 1}, restart=False, may_begin=lambda: None)
        assert workspace.rows_done == 12
        assert workspace.redone is None
        assert not workspace.path("3").exists()
    (tmp_path / "out.jsonl.bulk" / "1").write_text("cut")
    with Workspace(output) as workspace:
        workspace.open({"run": 1}, restart=False, may_begin=lambda: None)
        assert workspace.rows_done == 4
        assert workspace.redone is not None
        assert "1 has 3 bytes, not 5: its rows and those after it, 8 in all, are scored" in workspace.redone
        assert not workspace.path("2").exists()
        with pytest.raises(UserError, match="unfinished run with other run;"):
            workspace.open({"run": 2}, restart=False, may_begin=lambda: None)
        with pytest.raises(UserError, match="another run writes to this output"), Workspace(output):
            pass
