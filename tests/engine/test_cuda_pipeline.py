"""A whole pipeline on CUDA: templates in, rows out, beside the same pipeline on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.build import BuildSpec, build_artifact
from engine.packed import BatchBounds
from engine.pipeline import Answer, ArtifactStore, Pipeline, PipelineConfig
from tiny_models import TinyModel

pytestmark = pytest.mark.gpu

WAIT_S = 120
TOLERANCE = 0.05  # of a probability: bfloat16 against float32
PIPELINE: dict[str, Any] = {
    "name": "both",
    "bounds": {"samples": 32, "tokens_per_sample": 256, "tokens_per_request": 2048},
    "nodes": {
        "prompt": {"kind": "tokenizer", "artifact": "tiny", "template": "buy {query}", "cut": "query"},
        "labels": {
            "kind": "prefill",
            "artifact": "tiny",
            "inputs": ["prompt"],
            "head": "label_scores",
            "labels": {"yes": "yes", "no": "no"},
        },
        "vector": {"kind": "prefill", "artifact": "tiny", "inputs": ["prompt"], "head": "embedding"},
        "answer": {
            "kind": "encoder",
            "inputs": ["labels", "vector"],
            "output": {"labels": "softmax", "vector": "embedding"},
        },
    },
}


def test_rows_on_cuda_are_those_on_the_cpu(tiny_causal: TinyModel, tmp_path: Path, sample: type[Any]) -> None:
    bounds = BatchBounds(samples=32, tokens=2048, tokens_per_sample=512)
    on_cuda = build_artifact(
        BuildSpec(tiny_causal.checkpoint, tmp_path / "cuda", "tiny", device="cuda", bounds=bounds)
    )
    found = run(on_cuda, "cuda", sample)
    for row, expected in zip(found, run(tiny_causal.artifact, "cpu", sample), strict=True):
        assert row["labels"]["scores"] == pytest.approx(expected["labels"]["scores"], abs=TOLERANCE)
        assert row["vector"]["embedding"] == pytest.approx(expected["vector"]["embedding"], abs=TOLERANCE)


def run(artifact: Path, device: str, sample: type[Any]) -> list[dict[str, Any]]:
    store = ArtifactStore({"tiny": artifact}, device=device, lanes=2, threads=1)
    try:
        with Pipeline.open(PipelineConfig.model_validate(PIPELINE), store) as pipeline:
            queries = ["the wireless mouse", "a", "silent click and a long battery " * 9, "laptop"]
            batch = [pipeline.prepare([sample(fields={"query": each})] * 3) for each in queries]
            results = pipeline.submit(batch).result(WAIT_S)
    finally:
        store.close()
    rows: list[dict[str, Any]] = []
    for result in results:
        assert isinstance(result, Answer), result
        rows.extend(result.rows)
    return rows
