"""An artifact that searches, built for CUDA: a pipeline's graphs near a plain search; items swapped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.build import BuildSpec, build_artifact
from engine.build.plain_beams import search_plainly
from engine.nodes.beam import Beam
from engine.packed import BatchBounds
from engine.pipeline import Answer, Pipeline, PipelineConfig
from engine.runtime.beam_graphs import GraphBeamLanes
from engine.store import ArtifactStore
from hopper_models import save_tiny

pytestmark = pytest.mark.gpu

WIDTH, STEPS = 8, 3
BOUNDS = BatchBounds(samples=8, tokens=512, tokens_per_sample=64)
PROMPTS = [[5, 6, 7], [100, 200, 42, 17, 3, 9, 250], [42] * 30]
TOLERANCE = {"bf16": 0.3, "fp8": 1.5, "int8": 0.8}  # of a score, the sum of four log-probabilities

KINDS: dict[str, tuple[str, dict[str, int]]] = {
    "bf16": ("bias", {}), "fp8": ("norm", {}), "int8": ("int8", {"hidden_size": 192}),
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    token_ids: list[int]
    text: None = None
    fields: None = None


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    artifact: Path
    precision: str


@pytest.fixture(scope="module", params=["bf16", "fp8", "int8"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, precision = tmp_path_factory.mktemp(request.param), request.param
    kind, sizes = KINDS[precision]
    checkpoint = save_tiny(folder / "checkpoint", kind, vocab_size=368, num_hidden_layers=2, **sizes)
    spec = BuildSpec(
        checkpoint, folder / "out", "tiny", device="cuda", precision=precision, bounds=BOUNDS,
        beam=BeamBounds(WIDTH, STEPS, 4),
    )  # fmt: skip
    return Built(checkpoint, build_artifact(spec), precision)


@pytest.fixture(scope="module")
def store(built: Built) -> Iterator[ArtifactStore]:
    store = ArtifactStore({"tiny": built.artifact}, device="cuda", lanes=2)
    yield store
    store.close()


def open_pipeline(store: ArtifactStore, **more: Any) -> Pipeline:
    model = {"kind": "beam", "artifact": "tiny", "inputs": ["prompt"], "width": WIDTH, "steps": STEPS}
    nodes = {
        "prompt": {"kind": "tokenizer", "artifact": "tiny"},
        "model": model | more,
        "answer": {"kind": "encoder", "inputs": ["model"]},
    }
    bounds = {"samples": 2, "tokens_per_sample": 32, "tokens_per_request": 64}
    config = {"name": "recall", "bounds": bounds, "nodes": nodes}
    return Pipeline.open(PipelineConfig.model_validate(config), store)


def ask(pipeline: Pipeline, prompts: list[list[int]]) -> list[list[dict[str, Any]]]:
    """Every prompt a request, all in one batch."""
    batch = [pipeline.prepare([Sample(prompt)]) for prompt in prompts]
    rows = []
    for answer in pipeline.submit(batch).result(120):
        assert isinstance(answer, Answer), answer
        rows.append(answer.rows[0]["beams"])
    return rows  # type: ignore[return-value]


def test_parity_was_measured(built: Built) -> None:
    manifest = Artifact.open(built.artifact, device="cuda").manifest
    assert manifest.plan is not None
    assert manifest.beam is not None
    assert manifest.beam.parity.max_abs_error < TOLERANCE[built.precision]


def test_a_pipeline_finds_what_a_plain_search_does(built: Built, store: ArtifactStore) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(built.checkpoint, dtype=torch.float32).eval().cuda()
    with open_pipeline(store) as pipeline:
        found = ask(pipeline, PROMPTS)
        assert ask(pipeline, PROMPTS) == found
        for prompt, beams in zip(PROMPTS, found, strict=True):
            plain = search_plainly(reference, prompt, WIDTH, STEPS)
            scores = [beam["score"] for beam in beams]
            assert scores == pytest.approx(plain.scores, abs=TOLERANCE[built.precision])
    lanes = store.get_beams("tiny")
    assert isinstance(lanes, GraphBeamLanes)
    assert lanes.fallbacks == 0


def write_items(path: Path, items: dict[str, list[int]]) -> None:
    lines = [json.dumps({"item_id": name, "token_ids": ids}) for name, ids in items.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.rename(path)


def test_items_are_swapped(store: ArtifactStore, tmp_path: Path) -> None:
    """To a set of the same size, and to one that needs a larger place."""
    path = tmp_path / "items.jsonl"
    versions = [
        {f"v{version}-{n}": [n % 90, 7 + version, n % 5, 30 + n % 3] for n in range(count)}
        for version, count in enumerate((90, 80, 90))
    ]
    versions.append({f"v3-{n}": [n % 300, 10 + n // 300, n % 7, n % 11] for n in range(9000)})
    write_items(path, versions[0])
    with open_pipeline(store, items=str(path)) as pipeline:
        (node,) = (node for node in pipeline._graph.nodes.values() if isinstance(node, Beam))
        assert node._catalogue is not None
        for items in versions:
            if items is not versions[0]:
                write_items(path, items)
                for _ in range(4):
                    node._catalogue.look()
            for beams in ask(pipeline, PROMPTS):
                assert len(beams) == WIDTH
                for beam in beams:
                    assert all(items[name] == beam["token_ids"] for name in beam["item_ids"])
                    assert beam["item_ids"]
    assert store.get_beams("tiny").fallbacks == 0
    assert store.load_reports["tiny"].graphs > store.get("tiny").lanes.load_report.graphs
