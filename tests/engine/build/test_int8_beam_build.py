"""Searches in int8, built for CUDA and acted out on the CPU: plan, packages, and scores near a plain search.

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
from safetensors.torch import load_file

import engine.artifact
import engine.build.cuda_package
import engine.build.package
from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.beam.search import SearchPlan
from engine.build import BuildSpec, build_artifact
from engine.build.accuracy import _serving, choose_schemes
from engine.build.cuda_beam_package import LOSS
from engine.build.cuda_package import write_cuda_package
from engine.build.plain_beams import search_plainly
from engine.build.spec import Calibration
from engine.manifest import PACKAGE, PROMPT_PACKAGE, STEP_PACKAGE, WEIGHTS
from engine.models.checkpoint import load_checkpoint
from engine.models.cuda_weights import UNROTATE
from engine.models.plan import MATRICES, Plan
from engine.models.weights import LM_HEAD
from engine.packed import BatchBounds, pack
from engine.pipeline import PipelineConfig
from engine.quant.budget import Budget
from engine.quant.schemes import Form
from engine.quant.speed import estimate_times
from engine.quant.study import Study
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.lanes import LanePool
from engine.runtime.native import open_runner
from hopper_models import save_tiny

BOUNDS = BatchBounds(samples=8, tokens=512, tokens_per_sample=64)
BEAM = BeamBounds(width=6, steps=3, prompts=4)
NEAR = 0.75  # of a score, the sum of four log-probabilities; e4m3 is held to 1.5
PROMPTS = [[5, 6, 7], [100, 200, 42, 17, 3, 9, 250], [42] * 30]
WIDTHS = [4, 6, 1]
WORDS = ["the", "wireless", "mouse", "with", "a", "silent", "click", "long", "battery", "laptop"]


@dataclass(frozen=True)
class Built:
    checkpoint: Path
    artifact: Artifact
    spec: BuildSpec


def searches(folder: Path) -> Calibration:
    """Ten requests to a pipeline that searches."""
    model = {"kind": "beam", "artifact": "tiny", "inputs": ["prompt"], "width": 5, "steps": 2}
    nodes = {"prompt": {"kind": "tokenizer", "artifact": "tiny", "template": "buy {q} or"}, "model": model}
    bounds = {"samples": 2, "tokens_per_sample": 32, "tokens_per_request": 64}
    config = PipelineConfig.model_validate({"name": "recall", "bounds": bounds, "nodes": nodes})
    texts = folder / "searches.jsonl"
    texts.write_text("\n".join(json.dumps({"q": " ".join(WORDS[n:])}) for n in range(10)), encoding="utf-8")
    return Calibration(texts, (config,), Budget(99, 99, 0))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Of a device with e4m3, so that the head has it."""
    folder = tmp_path_factory.mktemp("int8")
    checkpoint = save_tiny(
        folder / "checkpoint", "int8", vocab_size=368, num_hidden_layers=2, hidden_size=192
    )
    spec = BuildSpec(
        checkpoint, folder / "out", "tiny",
        dtype="bfloat16", bounds=BOUNDS, beam=BEAM, calibrate=searches(folder),
    )  # fmt: skip
    object.__setattr__(spec, "precision", "int8")  # a spec refuses it without a device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        patch.setattr(engine.build.package, "GraphLanePool", LanePool)
        patch.setattr(engine.artifact, "GraphLanePool", LanePool)
        patch.setattr(engine.artifact, "GraphBeamLanes", BeamLanes)
        yield Built(checkpoint, Artifact.open(build_artifact(spec)), spec)


def test_gate_up_and_down_are_int8_in_a_rotated_stream(built: Built) -> None:
    manifest = built.artifact.manifest
    assert manifest.plan is not None
    plan = Plan.from_manifest(manifest.plan)
    assert plan.rotated
    assert {tuple(getattr(layer, kind) for kind in MATRICES) for layer in plan.layers} == {
        ("bf16", "bf16", "int8", "int8")
    }
    assert {(layer.path, layer.fused_gate_up) for layer in plan.layers} == {("portable", True)}
    stored = load_file(built.artifact.path / WEIGHTS)
    types = {name: stored[f"layers.1.{name}.weight"].dtype for name in ("output", "gate_up", "down")}
    assert types == {"output": torch.bfloat16, "gate_up": torch.int8, "down": torch.int8}
    assert stored[LM_HEAD].dtype == torch.bfloat16  # the exact head keeps its own channels
    assert built.artifact.has_narrow_head


def test_all_packages_read_the_same_tensors(built: Built) -> None:
    path = built.artifact.path
    names = {each: set(open_runner(path / each, -1).constant_names()) for each in (
        PACKAGE, PROMPT_PACKAGE, STEP_PACKAGE,
    )}  # fmt: skip
    scales = {f"layers.{index}.{kind}.weight_scales" for index in (0, 1) for kind in ("gate_up", "down")}
    for found in names.values():
        assert found <= set(load_file(path / WEIGHTS))
        assert {name for name in found if name.endswith("_scales")} == scales
        assert UNROTATE in found


def test_winners_are_counted_as_they_are_served(built: Built) -> None:
    accuracy, beam = built.artifact.manifest.accuracy, built.artifact.manifest.beam
    assert accuracy is not None
    assert beam is not None
    plans = {plan["name"]: plan for plan in accuracy["plans"]}
    assert plans["int8_exact"]["eight_bits"] == 0.5  # attention's projections stay bf16
    shift = accuracy["measured"]["ranks"]["score_shift"]
    assert 0 < shift < 2 * plans["int8_exact"]["agreement"]["ranks"]["score_shift"]
    assert beam.parity.max_abs_error < NEAR


def test_scores_are_near_a_plain_search(built: Built) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(built.checkpoint, dtype=torch.float32).eval()
    pool = built.artifact.open_lanes(1)
    beams = built.artifact.open_beams(pool)
    try:
        found = pool.executor.submit(beams.search, pack(PROMPTS), WIDTHS, SearchPlan(BEAM.steps)).result(60)
        alone = pool.executor.submit(beams.search, pack(PROMPTS[1:2]), [6], SearchPlan(BEAM.steps)).result(60)
    finally:
        pool.close()
    for sample, (prompt, width) in enumerate(zip(PROMPTS, WIDTHS, strict=True)):
        plain = search_plainly(reference, prompt, width, BEAM.steps)
        scores = found.scores[sample]
        torch.testing.assert_close(scores[:width], torch.tensor(plain.scores), atol=NEAR, rtol=0)
        assert bool((scores[width:] == -torch.inf).all())
    torch.testing.assert_close(alone.scores[0], found.scores[1], atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("capability", "precision", "scaling", "schemes", "head"),
    [
        ((9, 0), "auto", "static", ("e4m3_static", "int8_exact"), True),
        ((9, 0), "int8", "static", ("int8_exact",), True),
        ((9, 0), "auto", "token", ("e4m3_token",), True),
        ((8, 0), "auto", "static", ("int8_exact",), False),
    ],
)
def test_a_search_is_studied_for_what_its_device_can_do(
    capability: tuple[int, int], precision: str, scaling: str, schemes: tuple[str, ...], head: bool,
    built: Built, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    spec = copy(built.spec)
    for key, value in (("device", "cuda"), ("precision", precision), ("scaling", scaling)):
        object.__setattr__(spec, key, value)
    architecture = load_checkpoint(built.checkpoint, max_tokens=64).architecture
    assert choose_schemes(spec, architecture) == schemes
    serving = _serving(spec)
    assert (serving.kinds, serving.narrow_head) == (("gate_up", "down"), head)


@pytest.mark.parametrize(
    ("form", "gate_up", "planned", "capability"),
    [
        ("stream", "int8_exact", "int8", (9, 0)),
        ("stream", "int8_exact", "int8", (8, 0)),
        ("heads", "e4m3_static", "fp8", (9, 0)),
    ],
)
def test_auto_builds_the_layers_that_it_chose(
    form: Form, gate_up: str, planned: str, capability: tuple[int, int], built: Built,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[Any] = []

    def write(_: BuildSpec, plan: Plan, *more: Any, narrow: bool) -> None:
        asked.extend((plan, more[-1].form, narrow))

    monkeypatch.setattr(engine.build.cuda_package, "write_planned_package", write)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    checkpoint = load_checkpoint(built.checkpoint, max_tokens=64)
    bf16 = dict.fromkeys(MATRICES, "bf16")
    layers = (bf16 | {"gate_up": gate_up, "down": "int8_exact"}, bf16 | {"down": "int8_exact"})
    times = estimate_times(checkpoint.architecture)
    study = Study("", Budget(), times, (), {}, layers, (), form=form, narrow_head=True)
    spec = copy(built.spec)
    object.__setattr__(spec, "precision", "auto")
    write_cuda_package(spec, "auto", checkpoint, built.artifact.path, lambda _: None, study)
    plan, found, narrow = asked
    assert [[getattr(layer, kind) for kind in MATRICES] for layer in plan.layers] == [
        ["bf16", "bf16", planned, "int8"],
        ["bf16", "bf16", "bf16", "int8"],
    ]
    assert (plan.rotated, found) == (True, form)
    assert narrow is (capability == (9, 0))  # the head's 8 bits are e4m3
    told = "75%" if planned == "fp8" else "87%"
    assert [told in note for note in plan.notes if note.startswith(LOSS)] == [True]
