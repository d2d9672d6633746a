"""Texts and a pipeline to calibrate a build with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.build.spec import Calibration
from engine.pipeline_config import read_pipeline

WORDS = ["wireless", "mouse", "silent", "click", "long", "battery", "new", "laptop", "buy", "compare"]
PIPELINE = """
name: pair
bounds: {samples: 4, tokens_per_sample: 64, tokens_per_request: 128}
nodes:
  prompt: {kind: tokenizer, artifact: any, template: "compare {q} for {t} yes or no:"}
  model: {kind: prefill, artifact: any, inputs: [prompt], head: label_scores, labels: {y: "yes", n: "no"}}
"""


@pytest.fixture
def calibrate(tmp_path: Path) -> Any:
    pipeline = tmp_path / "pair.yaml"
    pipeline.write_text(PIPELINE)
    texts = tmp_path / "texts.jsonl"
    lines = [{"q": WORDS[i % 10], "t": " ".join(WORDS[i % 7 : 9])} for i in range(30)]
    texts.write_text("\n".join(map(json.dumps, lines)))
    return lambda budget: Calibration(texts, (read_pipeline(pipeline),), budget)
