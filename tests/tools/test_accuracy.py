"""The demo's calibration texts are what the reports say, and --calibrate asks for what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.pipeline_config import read_pipeline
from engine.quant.budget import Budget
from tools.accuracy import read_calibration
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
