"""Whole builds with `precision = "auto"` on a device: times measured there, and what was chosen by them.

A minute in all: three builds of tiny models. Nothing else may run on the device while layers are timed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from auto_builds import BEAM, BEAM_BOUNDS, BOUNDS, calibration, check_study, run_oracles, save_model
from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.build.plain_beams import search_plainly
from engine.models.plan import MATRICES
from engine.packed import pack
from engine.pipeline import Answer, Pipeline, PipelineConfig
from engine.quant.budget import Budget
from engine.runtime.beam_graphs import GraphBeamLanes
from engine.store import ArtifactStore
from hopper_models import QUERIES, answer_queries

pytestmark = pytest.mark.gpu

LENGTHS = (1, 128, 60, 64, 65, 1, 2, 100, 17, 127)
PROMPTS = [[5, 6, 7], [100, 200, 42, 17, 3, 9, 250], [42] * 30]
LAYERS = {"scores": 3, "search": 2, "narrow": 1}
# Of 8 bits that a budget of no limits chose, relative, against float32; and against the same oracles' decoder
NEAR_PLAIN, NEAR_ORACLES = 0.3, 0.12
SCORE = 1.5  # of a sequence, the sum of three log-probabilities
WINNERS = 0.5  # of float32's 32; emulated, e4m3 keeps 0.8
# One matrix of the single layer in e4m3 adds 8e-4 or more, bf16 has 7e-5.
NARROW = Budget(9, 3e-4)
WAIT_S = 120


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    artifact: Artifact
    stages: list[str]


def build(name: str, folder: Path, calibrate: Any, **more: Any) -> Built:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no e4m3 tensor cores")
    checkpoint, stages = save_model(folder / "checkpoint", LAYERS[name]), list[str]()
    spec = BuildSpec(
        checkpoint, folder / "out", "tiny",
        device="cuda", precision="auto", calibrate=calibrate, **({"bounds": BOUNDS} | more),
    )  # fmt: skip
    return Built(checkpoint, Artifact.open(build_artifact(spec, stages.append), device="cuda"), stages)


def source() -> str:
    return f"measured on {torch.cuda.get_device_name()}"


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("scores")
    return build("scores", folder, calibration(folder, Budget(9, 9)))


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("searches")
    texts = calibration(folder, Budget(9, 9, WINNERS), BEAM)
    return build("search", folder, texts, bounds=BEAM_BOUNDS, beam=BEAM)


def test_a_plan_is_chosen_by_times_of_the_device(scores: Built) -> None:
    manifest = scores.artifact.manifest
    assert manifest.plan is not None
    assert manifest.accuracy is not None
    hopper = manifest.plan["library"] is not None
    integers = "int8" if hopper else "int8_exact"
    check_study(scores.artifact, ["e4m3_static", integers], [1024, 2048, 4096], source())
    assert "measuring layers on the device" in scores.stages
    saved = manifest.accuracy["times"]["saved"]
    assert {kind: set(each) for kind, each in saved.items()} == {
        kind: {"e4m3_static", integers} for kind in MATRICES
    }
    assert max(saved["gate_up"].values()) > 0
    assert {layer["path"] for layer in manifest.plan["layers"]} == {"hopper" if hopper else "portable"}
    assert scores.artifact.quantises


def test_its_lanes_give_what_its_oracles_do(scores: Built) -> None:
    size = scores.artifact.manifest.architecture["vocab_size"]
    generator = torch.Generator().manual_seed(0)
    packed = pack([torch.randint(0, size, (n,), generator=generator).tolist() for n in LENGTHS])
    made, plain = run_oracles(scores.checkpoint, scores.artifact, packed)
    pool = scores.artifact.open_lanes(2)
    try:
        found, again = (pool.executor.submit(pool.forward, packed).result(WAIT_S) for _ in range(2))
    finally:
        pool.close()
    assert torch.equal(found, again)
    assert float((found - made).norm() / made.norm()) < NEAR_ORACLES
    assert float((found - plain).norm() / plain.norm()) < NEAR_PLAIN


def test_it_serves_a_pipeline(scores: Built, sample: Any) -> None:
    rows = answer_queries(scores.artifact.path, "cuda", sample, lanes=2)
    assert len(rows) == 3 * len(QUERIES)
    assert all(0 < row["scores"]["yes"] < 1 for row in rows)


def test_a_search_is_chosen_by_its_winners(searches: Built) -> None:
    manifest = searches.artifact.manifest
    assert manifest.accuracy is not None
    assert manifest.plan is not None
    assert manifest.beam is not None
    check_study(searches.artifact, ["e4m3_static", "int8_exact"], [32, 160, 256], source())
    assert set(manifest.accuracy["times"]["saved"]) == {"gate_up", "down"}
    for plan in (*manifest.accuracy["plans"], {"agreement": manifest.accuracy["measured"]}):
        ranks = plan["agreement"]["ranks"]
        assert (ranks["prompts"], ranks["width"], ranks["steps"]) == (8, BEAM.width, BEAM.steps)
    assert manifest.accuracy["measured"]["ranks"]["winners"] >= WINNERS
    layers = manifest.plan["layers"]
    assert {(layer["path"], layer["qkv"], layer["output"]) for layer in layers} == {
        ("portable", "bf16", "bf16")
    }
    assert manifest.beam.parity.max_abs_error <= manifest.beam.parity.max_abs_tolerance


@pytest.fixture
def store(searches: Built) -> Iterator[ArtifactStore]:
    store = ArtifactStore({"tiny": searches.artifact.path}, device="cuda", lanes=2)
    yield store
    store.close()


def test_its_search_serves_a_pipeline(searches: Built, store: ArtifactStore, sample: Any) -> None:
    from transformers import AutoModelForCausalLM

    nodes = {
        "prompt": {"kind": "tokenizer", "artifact": "tiny"},
        "model": {
            "kind": "beam", "artifact": "tiny", "inputs": ["prompt"], "width": 8, "steps": BEAM.steps,
        },
        "answer": {"kind": "encoder", "inputs": ["model"]},
    }  # fmt: skip
    bounds = {"samples": 1, "tokens_per_sample": 48, "tokens_per_request": 48}
    config = PipelineConfig.model_validate({"name": "recall", "bounds": bounds, "nodes": nodes})
    with Pipeline.open(config, store) as pipeline:
        batch = [pipeline.prepare([sample(token_ids=ids)]) for ids in PROMPTS]
        answers = pipeline.submit(batch).result(WAIT_S)
    reference = AutoModelForCausalLM.from_pretrained(searches.checkpoint, dtype=torch.float32).eval()
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert isinstance(answer, Answer), answer
        beams: Any = answer.rows[0]["beams"]
        plain = search_plainly(reference, prompt, 8, BEAM.steps)
        assert [beam["score"] for beam in beams] == pytest.approx(plain.scores, abs=SCORE)
    lanes = store.get_beams("tiny")
    assert isinstance(lanes, GraphBeamLanes)
    assert lanes.fallbacks == 0


def test_a_budget_that_no_8_bits_hold_leaves_bf16(tmp_path: Path) -> None:
    texts = calibration(tmp_path, NARROW)
    built = build("narrow", tmp_path, texts, kernels="portable", scaling="token")
    check_study(built.artifact, ["e4m3_token"], [1024, 2048, 4096], source())
    manifest = built.artifact.manifest
    assert manifest.accuracy is not None
    assert not built.artifact.quantises
    assert "auto: no plan with 8 bits holds the budget: bf16" in manifest.accuracy["notes"]
    kls = {plan["name"]: plan["agreement"]["next_token_kl"] for plan in manifest.accuracy["plans"]}
    assert kls["bf16"] == kls["auto"] < NARROW.kl < kls["e4m3_token"]
    assert json.loads((built.artifact.path / "accuracy.json").read_text())["budget"]["kl"] == NARROW.kl
