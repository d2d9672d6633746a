"""The demo's calibration texts are what the reports say, and --calibrate asks for what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from engine.pipeline_config import read_pipeline
from engine.quant.budget import Budget
from tools.accuracy import accuracy_table, read_calibration, times_table
from tools.errors import UserError


def test_the_demos_texts_leave_500_to_judge_by() -> None:
    found = read_calibration("demo", [], Budget())
    assert found is not None
    assert [pipeline.name for pipeline in found.pipelines] == ["relevance", "intent"]
    requests = [json.loads(line) for line in found.file.read_text("utf-8").splitlines()]
    judging = [request for index, request in enumerate(requests) if index % 5 > 1]
    assert sum(len(request["samples"]) for request in judging) >= 500
    assert {request["pipeline"] for request in judging} == {"relevance", "intent"}
    assert found.file.stat().st_size < 150_000


def test_a_file_needs_its_pipeline(tmp_path: Path) -> None:
    assert read_calibration(None, [], Budget()) is None
    with pytest.raises(UserError, match="needs --pipeline"):
        read_calibration("mine.jsonl", [], Budget())
    with pytest.raises(UserError, match="goes with --calibrate"):
        read_calibration(None, [tmp_path / "p.yaml"], Budget())
    own = read_calibration("mine.jsonl", [Path("configs/intent.yaml")], Budget(0.1, 0.2))
    assert own is not None
    assert own.pipelines == (read_pipeline(Path("configs/intent.yaml")),)


def test_the_table_has_every_plan_and_a_dash_for_what_was_not_measured() -> None:
    measured = {"label_shift": 0.0312, "next_token_kl": 0.00091, "label_agreement": 1.0, "texts": 556}
    unlabelled = {**measured, "label_shift": None, "label_agreement": None}
    plan = {"name": "int8", "agreement": unlabelled, "speed": 1.7, "eight_bits": 1.0}
    accuracy = {
        "budget": {"label_shift": 0.05, "kl": 0.004, "winners": 0.9},
        "plans": [plan],
        "measured": measured,
        "method": "emulated",
        "notes": ["int8: down stays bf16"],
    }
    console = Console(width=80, record=True)  # of a log
    console.print(accuracy_table(accuracy))
    text = console.export_text()
    words = (
        "emulated",
        "556 texts",
        "int8",
        "1.70x",
        "0.0312",
        "0.00091",
        "down stays bf16",
        "this artifact",
    )
    assert all(word in " ".join(text.split()) for word in words)
    assert " - " in text
    assert "winners" not in text
    plan["agreement"] = {**unlabelled, "ranks": {"winners": 0.93}}
    console.print(accuracy_table(accuracy))
    text = console.export_text()
    assert "winners 0.9" in " ".join(text.split())
    assert "0.930" in text
    assert "…" not in text


def test_the_times_say_where_they_are_from_and_what_eight_bits_save() -> None:
    saved = {"gate_up": {"e4m3_static": 35.0, "int8": 30.0}, "down": {"int8": -7.0}}
    times = {"source": "measured on NVIDIA H200", "layer": 140.0, "saved": saved, "exact": {"gate_up": 5.6}}
    console = Console(width=160, record=True)
    console.print(times_table(times | {"batches": [1024, 4096]}))
    text = console.export_text()
    assert "measured on NVIDIA H200, batches of 1,024, 4,096 tokens" in " ".join(text.split())
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert "25.0%" in rows["gate_up"]
    assert "21.4%" in rows["gate_up"]
    assert "4.0%" in rows["gate_up"]
    assert "-5.0%" in rows["down"]
    assert " - " in rows["down"]
    console.print(times_table(times | {"source": "estimated", "batches": []}))
    text = console.export_text()
    assert "estimated" in text
    assert "batches" not in text
