"""A build of beams for CUDA acted out on the CPU: the same plan, weights and packages, oracles for kernels.

Only what asks for a device is replaced: its capability, and its lanes of graphs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.artifact
import engine.build.cuda_package
import engine.build.package
from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.beam.frontier import Frontier
from engine.beam.search import SearchPlan
from engine.build import BuildSpec, build_artifact
from engine.build.cuda_beam_package import LOSS, NOTE
from engine.build.cuda_package import write_cuda_package
from engine.build.plain_beams import search_plainly
from engine.build.spec import Calibration
from engine.errors import ConfigError
from engine.manifest import WEIGHTS
from engine.models.checkpoint import load_checkpoint
from engine.packed import BatchBounds, pack
from engine.pipeline import Answer, Pipeline, PipelineConfig
from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.ranks import Ranks
from engine.quant.speed import estimate_times
from engine.quant.study import PlanResult, Study
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.lanes import LanePool
from engine.runtime.native import load_weights
from engine.store import ArtifactStore
from hopper_models import save_tiny

BOUNDS = BatchBounds(samples=8, tokens=512, tokens_per_sample=64)
BEAM = BeamBounds(width=6, steps=3, prompts=4)
TOLERANCE = {"bf16": 0.1, "fp8": 1.5}  # of a score, the sum of four log-probabilities
PROMPTS = [[5, 6, 7], [100, 200, 42, 17, 3, 9, 250], [42] * 30]
WIDTHS = [4, 6, 1]


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    artifact: Path
    precision: str
    spec: BuildSpec


def searches(folder: Path, budget: Budget, **options: Any) -> Calibration:
    """Ten requests to a pipeline that searches."""
    nodes = {
        "prompt": {"kind": "tokenizer", "artifact": "tiny", "template": "buy {q} or"},
        "model": {
            "kind": "beam",
            "artifact": "tiny",
            "inputs": ["prompt"],
            "width": 5,
            "steps": 2,
            **options,
        },
    }
    bounds = {"samples": 2, "tokens_per_sample": 32, "tokens_per_request": 64}
    config = PipelineConfig.model_validate({"name": "recall", "bounds": bounds, "nodes": nodes})
    words = ["the", "wireless", "mouse", "with", "a", "silent", "click", "long", "battery", "laptop"]
    texts = folder / "searches.jsonl"
    texts.write_text("\n".join(json.dumps({"q": " ".join(words[n:])}) for n in range(10)), encoding="utf-8")
    return Calibration(texts, (config,), budget)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """In 8 bits, which has everything that bf16 has."""
    folder, precision = tmp_path_factory.mktemp("built"), "fp8"
    checkpoint = save_tiny(folder / "checkpoint", "norm", vocab_size=368, num_hidden_layers=1)
    spec = BuildSpec(
        checkpoint, folder / "out", "tiny",
        dtype="bfloat16", bounds=BOUNDS, beam=BEAM, calibrate=searches(folder, Budget(99, 99, 0)),
    )  # fmt: skip
    object.__setattr__(spec, "precision", precision)  # a spec refuses it without a device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        patch.setattr(engine.build.package, "GraphLanePool", LanePool)
        patch.setattr(engine.artifact, "GraphLanePool", LanePool)
        patch.setattr(engine.artifact, "GraphBeamLanes", BeamLanes)
        yield Built(checkpoint, build_artifact(spec), precision, spec)


@pytest.fixture(scope="module")
def beams(built: Built) -> Iterator[BeamLanes]:
    artifact = Artifact.open(built.artifact)
    pool = artifact.open_lanes(1)
    yield artifact.open_beams(pool)
    pool.close()


def find(beams: BeamLanes, prompts: list[list[int]], widths: list[int], **more: Any) -> Frontier:
    plan = SearchPlan(BEAM.steps, **more)
    return beams.pool.executor.submit(beams.search, pack(prompts), widths, plan).result()


def test_manifest(built: Built) -> None:
    manifest = Artifact.open(built.artifact).manifest
    assert manifest.plan is not None
    assert manifest.beam is not None
    assert NOTE in manifest.plan["notes"]
    assert not any(note.startswith(LOSS) for note in manifest.plan["notes"])  # its winners were counted
    names = ("path", "qkv", "output", "down")
    kinds = {tuple(layer[name] for name in names) for layer in manifest.plan["layers"]}
    assert kinds == {("portable", "bf16", "bf16", built.precision)}
    assert manifest.beam.parity.max_abs_error < TOLERANCE[built.precision]


def test_winners_are_counted_of_plans_and_of_the_artifact_itself(built: Built) -> None:
    accuracy = Artifact.open(built.artifact).manifest.accuracy
    assert accuracy is not None
    plans = {plan["name"]: plan for plan in accuracy["plans"]}
    assert plans["e4m3_static"]["eight_bits"] == 0.5  # attention's projections stay bf16
    found = accuracy["measured"]["ranks"]
    assert (found["prompts"], found["width"], found["steps"]) == (6, 5, 2)
    assert 0.3 < found["winners"] <= plans["bf16"]["agreement"]["ranks"]["winners"] <= 1
    assert 0 < found["score_shift"] < 2 * plans["e4m3_static"]["agreement"]["ranks"]["score_shift"]


@pytest.mark.parametrize(
    ("beam", "options", "said"),
    [
        (None, {}, r"beam_width = None: pipeline 'recall' searches with width = 5"),
        (BeamBounds(4, 2, 4), {}, r"beam_width = 4: pipeline 'recall' searches with width = 5"),
        (BeamBounds(6, 2, 4), {"steps": 3}, r"beam_steps = 2: pipeline 'recall' searches with steps = 3"),
    ],
)
def test_a_pipeline_that_searches_further_than_the_artifact(
    beam: BeamBounds | None, options: dict[str, int], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        BuildSpec(
            tmp_path, tmp_path / "out", "tiny", bounds=BOUNDS, beam=beam,
            calibrate=searches(tmp_path, Budget(), **options),
        )  # fmt: skip


@pytest.mark.parametrize("precision", ["auto", "fp8"])
@pytest.mark.parametrize("searched", [True, False])
def test_lost_winners_are_warned_of_where_none_were_counted(
    precision: str, searched: bool, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that had just been held to its winners told to measure them, and to build with auto."""
    notes: list[str] = []
    monkeypatch.setattr(
        engine.build.cuda_package,
        "write_planned_package",
        lambda _, plan, *more, **kw: notes.extend(plan.notes),
    )
    checkpoint = load_checkpoint(built.checkpoint, max_tokens=64)
    ranks = Ranks(8, 5, 2, 0.95, 1.0, 1.0, 1.0, 0.1) if searched else None
    measured = PlanResult("auto", Agreement(8, None, None, None, 0.0, ranks=ranks), 1.0, 0.5)
    layers = (dict.fromkeys(("qkv", "output", "gate_up", "down"), "e4m3_static"),)
    study = Study("", Budget(), estimate_times(checkpoint.architecture), (measured,), {}, layers, ())
    spec = copy(built.spec)
    object.__setattr__(spec, "precision", precision)
    write_cuda_package(spec, precision, checkpoint, built.artifact, lambda _: None, study)
    assert NOTE in notes
    assert any(note.startswith(LOSS) for note in notes) is not searched


@pytest.mark.parametrize(
    ("precision", "chosen", "narrow"), [("auto", False, False), ("auto", True, True), ("fp8", False, True)]
)
def test_auto_narrows_the_head_where_that_was_chosen(
    precision: str, chosen: bool, narrow: bool, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        engine.build.cuda_package, "write_planned_package", lambda *_, narrow: asked.append(narrow)
    )
    checkpoint = load_checkpoint(built.checkpoint, max_tokens=64)
    layers = (dict.fromkeys(("qkv", "output", "gate_up", "down"), "e4m3_static"),)
    a = checkpoint.architecture
    study = Study("", Budget(), estimate_times(a), (), {}, layers, (), narrow_head=chosen)
    spec = copy(built.spec)
    object.__setattr__(spec, "precision", precision)
    write_cuda_package(spec, precision, checkpoint, built.artifact, lambda _: None, study)
    assert asked == [narrow]


def test_what_prompts_begin_with_is_computed_at_build_as_when_served(built: Built) -> None:
    """From weights with the head of a search among them."""
    artifact = Artifact.open(built.artifact)
    assert artifact.has_narrow_head
    weights = load_weights(built.artifact / WEIGHTS, torch.device("cpu"))
    checkpoint = load_checkpoint(built.checkpoint, max_tokens=64)
    found = engine.build.package._prefix(built.spec, checkpoint, weights, (5, 6, 7))
    assert torch.equal(found.keys_values, artifact.constant_prefix((5, 6, 7)).keys_values)


def test_scores_are_near_a_plain_search(built: Built, beams: BeamLanes) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(built.checkpoint, dtype=torch.float32).eval()
    found = find(beams, PROMPTS, WIDTHS)
    for sample, (prompt, width) in enumerate(zip(PROMPTS, WIDTHS, strict=True)):
        plain = search_plainly(reference, prompt, width, BEAM.steps)
        scores = found.scores[sample]
        torch.testing.assert_close(
            scores[:width], torch.tensor(plain.scores), atol=TOLERANCE[built.precision], rtol=0
        )
        assert bool((scores[width:] == -torch.inf).all())


def test_neighbours_and_what_was_searched_before_do_not_matter(beams: BeamLanes) -> None:
    together = find(beams, PROMPTS, [6] * 3)
    find(beams, [[3] * 64] * 4, [6] * 4)
    for sample, prompt in enumerate(PROMPTS):
        alone = find(beams, [prompt], [6])
        torch.testing.assert_close(alone.scores[0], together.scores[sample], atol=0.05, rtol=0)


def test_slices_are_the_same_rows_of_the_head(beams: BeamLanes) -> None:
    """Of a slice that does not begin at a whole tile: near what is left of the whole head's logits."""
    slices = ((3, 368), (0, 50), (7, 23), (350, 368))
    found = find(beams, PROMPTS, [6] * 3, slices=slices)
    for position, (start, stop) in enumerate(slices):
        tokens = found.tokens[..., position]
        assert bool(((tokens >= start) & (tokens < stop)).all())


def test_a_pipeline_with_items(built: Built, sample: Any, tmp_path: Path) -> None:
    items = [{"item_id": f"i{n}", "token_ids": [n, 7, n % 5, 30 + n % 3]} for n in range(40)]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, items)) + "\n", encoding="utf-8")
    nodes = {
        "prompt": {"kind": "tokenizer", "artifact": "tiny"},
        "model": {
            "kind": "beam", "artifact": "tiny", "inputs": ["prompt"], "width": 5, "steps": 3,
            "items": str(tmp_path / "items.jsonl"),
        },
        "answer": {"kind": "encoder", "inputs": ["model"]},
    }  # fmt: skip
    bounds = {"samples": 2, "tokens_per_sample": 32, "tokens_per_request": 64}
    config = PipelineConfig.model_validate({"name": "recall", "bounds": bounds, "nodes": nodes})
    store = ArtifactStore({"tiny": built.artifact})
    try:
        with Pipeline.open(config, store) as pipeline:
            prepared = pipeline.prepare([sample(token_ids=ids) for ids in PROMPTS[:2]])
            (answer,) = pipeline.submit([prepared]).result(60)
    finally:
        store.close()
    assert isinstance(answer, Answer), answer
    known = {item["item_id"]: item["token_ids"] for item in items}
    for row in answer.rows:
        assert len(row["beams"]) == 5
        for beam in row["beams"]:
            assert [known[name] for name in beam["item_ids"]] == [beam["token_ids"]]
