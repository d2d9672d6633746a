"""A disk that fills up in a run: the file is named, nothing half stays, and the run goes on where it was.

Acted out by /dev/full, where every write fails as on a full disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.bulk import run

FULL = Path("/dev/full")


def fill(patch: pytest.MonkeyPatch, step: str, place: int, *, from_call: int = 1) -> None:
    """The disk is full for what this step of a run writes, its argument at `place`."""
    real, calls = getattr(run, step), []

    def write(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) >= from_call:
            arguments[place].symlink_to(FULL)
        return real(*arguments)

    patch.setattr(run, step, write)


@pytest.mark.parametrize("output", ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst", "out.parquet"])
def test_a_part_that_does_not_fit(desk: Any, output: str) -> None:
    desk.write_rows("in.jsonl", range(30))
    folder = desk.path(f"{output}.bulk")
    with pytest.MonkeyPatch.context() as patch:
        fill(patch, "write_part", 0, from_call=3)
        outcome = desk.bulk("in.jsonl", output, "--part-rows", "8")
    kind = "parquet" if output.endswith("parquet") else "jsonl"
    assert outcome.status == 2
    assert f"{folder}/part-000002.{kind}.tmp: No space left on device. 16 rows are done" in outcome.told
    assert f"kept in {folder}; mend that, and the same command goes on from there" in outcome.told
    assert sorted(path.name for path in folder.iterdir()) == [
        "journal.jsonl",
        "lock",
        f"part-000000.{kind}",
        f"part-000001.{kind}",
    ]
    outcome = desk.bulk("in.jsonl", output, "--part-rows", "8")
    assert (outcome.status, outcome.summary["rows_of_earlier_runs"]) == (0, 16)
    assert not folder.exists()


def test_the_first_part_does_not_fit(desk: Any) -> None:
    desk.write_rows("in.jsonl", range(30))
    with pytest.MonkeyPatch.context() as patch:
        fill(patch, "write_part", 0)
        outcome = desk.bulk("in.jsonl", "out.jsonl")
    assert outcome.status == 2
    assert "part-000000.jsonl.tmp: No space left on device. No row is done" in outcome.told


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_the_final_file_does_not_fit(desk: Any, output: str) -> None:
    desk.write_rows("in.jsonl", range(30))
    folder = desk.path(f"{output}.bulk")
    with pytest.MonkeyPatch.context() as patch:
        fill(patch, "join_parts", 2)
        outcome = desk.bulk("in.jsonl", output)
    assert outcome.status == 2
    assert f"{folder}/final.tmp: No space left on device. 30 rows are done" in outcome.told
    assert not list(folder.glob("*.tmp"))
    assert not desk.path(output).exists()
    assert desk.bulk("in.jsonl", output).status == 0
    assert desk.path(output).exists()


def test_the_journal_does_not_fit(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line is not whole, so its part is done again."""
    desk.write_rows("in.jsonl", range(30))
    journal = desk.path("out.jsonl.bulk") / "journal.jsonl"
    real = run.put_in_place

    def put(beside: Path, path: Path) -> None:
        real(beside, path)
        journal.rename(journal.with_name("kept"))
        journal.symlink_to(FULL)

    monkeypatch.setattr(run, "put_in_place", put)
    outcome = desk.bulk("in.jsonl", "out.jsonl")
    assert outcome.status == 2
    assert f"{journal}: No space left on device. No row is done" in outcome.told
    monkeypatch.undo()
    journal.with_name("kept").replace(journal)
    assert desk.bulk("in.jsonl", "out.jsonl").status == 0
    assert len(desk.read("out.jsonl")) == 30
