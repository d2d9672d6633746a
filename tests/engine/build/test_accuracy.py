"""A build that is judged by texts: what it keeps in the manifest, and that it refuses what is over budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import engine.build.accuracy
import engine.build.package
from engine.build import BuildSpec, build_artifact
from engine.build.accuracy import (
    CHART,
    REPORT,
    FullPrecision,
    load_texts,
    measure_package,
    model_of,
    study_accuracy,
)
from engine.build.spec import Calibration
from engine.errors import ConfigError
from engine.manifest import read_manifest
from engine.models.architecture import Architecture
from engine.models.checkpoint import load_checkpoint
from engine.models.decoder import PackedDecoder
from engine.models.plan import LayerPlan, Plan, restrict_plan
from engine.packed import BatchBounds, PackedBatch
from engine.pipeline_config import read_pipeline
from engine.prefixes import ConstantPrefix
from engine.quant.budget import Budget
from engine.quant.schemes import Scheme
from engine.quant.speed import estimate_times
from engine.quant.times import Times

BOUNDS = BatchBounds(samples=8, tokens=256, tokens_per_sample=64)


def test_a_build_keeps_what_was_measured(tmp_path: Path, tiny_causal: Any, calibrate: Any) -> None:
    out = tmp_path / "artifact"
    spec = BuildSpec(
        tiny_causal.checkpoint,
        out,
        "tiny",
        bounds=BOUNDS,
        dtype="bfloat16",
        precision="auto",
        calibrate=calibrate(Budget(9, 9)),
    )
    build_artifact(spec)
    manifest = read_manifest(out)[0]
    assert manifest.accuracy is not None
    names = [plan["name"] for plan in manifest.accuracy["plans"]]
    assert names == ["bf16", "e4m3_static", "e4m3_token", "int8", "auto"]
    assert 1e-6 < manifest.accuracy["measured"]["next_token_kl"] < 0.1
    assert "80 columns do not divide" in manifest.accuracy["notes"][0]
    assert manifest.accuracy["notes"][-1] == "no CUDA device: this artifact is all bfloat16, no plan of these"
    assert "emulated" in manifest.accuracy["method"]
    assert manifest.accuracy["method"].endswith("speed estimated from kernel times of one shape on an H200")
    assert manifest.accuracy["times"]["saved"]["gate_up"]["e4m3_static"] > 0
    assert {REPORT, CHART} <= set(manifest.files)
    assert json.loads((out / REPORT).read_text())["results"][0]["name"] == "bf16"
    assert "<svg" in (out / CHART).read_text()


def test_a_package_is_judged_as_it_is_served(tiny_causal: Any, calibrate: Any) -> None:
    checkpoint = load_checkpoint(tiny_causal.checkpoint, max_tokens=64)
    texts = load_texts(calibrate(Budget()), checkpoint, BOUNDS).judge
    assert {text.prefix for text in texts} == {3}
    decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, 64)
    seen: list[PackedBatch] = []

    def forward(packed: PackedBatch) -> Tensor:
        seen.append(packed)
        inputs = packed.input_ids, packed.positions, packed.cu_seqlens, packed.prefixes, packed.constant
        hidden: Tensor = decoder(*inputs)[: packed.num_samples]
        return hidden

    def compute(ids: tuple[int, ...]) -> ConstantPrefix:
        return ConstantPrefix(ids, decoder.keys_values(torch.tensor(ids)))

    model = model_of(checkpoint)
    mixed = [*texts, replace(texts[0], prefix=0), *texts]  # what has none is packed apart, the order stays
    for prefixes, tokens in ((None, 0), (FullPrecision(compute, 2), 4 * len(texts))):
        seen.clear()
        found = measure_package(model, forward, mixed, BOUNDS, prefixes)
        assert found.next_token_kl < 1e-9
        assert sum(len(text.ids) for text in mixed) - sum(batch.num_tokens for batch in seen) == tokens


def act_clock(patch: pytest.MonkeyPatch) -> list[str]:
    """A device that was timed: which schemes were."""
    asked: list[str] = []

    def find(spec: BuildSpec, architecture: Architecture, schemes: Sequence[Scheme], _: Any) -> Times:
        asked.extend(schemes)
        return replace(estimate_times(architecture), source="measured on a device")

    patch.setattr(engine.build.accuracy, "find_times", find)
    patch.setattr(engine.build.accuracy, "emulation_device", lambda *_: torch.device("cpu"))
    return asked


@pytest.mark.parametrize(
    ("precision", "integers", "e4m3", "measured"),
    [
        ("auto", "int8", True, ["e4m3_static", "int8"]),
        ("auto", "int8_exact", True, ["e4m3_static", "int8_exact"]),
        ("auto", "int8_exact", False, ["int8_exact"]),
        ("auto", None, True, ["e4m3_static"]),
        ("int8", "int8", True, ["int8"]),
    ],
)
def test_a_device_is_studied_for_what_it_can_build(
    precision: str, integers: str | None, e4m3: bool, measured: list[str], tmp_path: Path, tiny_causal: Any,
    calibrate: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(engine.build.accuracy, "int8_scheme", lambda *_: integers)
    monkeypatch.setattr(engine.build.accuracy, "serves_e4m3", lambda _: e4m3)
    asked = act_clock(monkeypatch)
    checkpoint = load_checkpoint(tiny_causal.checkpoint, max_tokens=64)
    spec = BuildSpec(tiny_causal.checkpoint, tmp_path / "no", "tiny", bounds=BOUNDS)
    for key, value in (("device", "cuda"), ("precision", precision)):
        object.__setattr__(spec, key, value)  # a spec refuses them without a device
    found = study_accuracy(calibrate(Budget(9, 9)), spec, checkpoint, tmp_path, lambda stage: None).study
    assert [each.name for each in found.results] == ["bf16", *measured, "auto"]
    assert asked == measured
    assert found.method.endswith("; speed measured on a device")
    assert measured[-1] in {scheme for layer in found.layers for scheme in layer.values()}


def test_scaling_per_token_is_no_choice_beside_int8(
    tmp_path: Path, tiny_causal: Any, calibrate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Static scales were taken without a word."""
    checkpoint = load_checkpoint(tiny_causal.checkpoint, max_tokens=64)
    spec = BuildSpec(tiny_causal.checkpoint, tmp_path / "no", "tiny", bounds=BOUNDS, scaling="token")
    for key, value in (("device", "cuda"), ("precision", "auto")):
        object.__setattr__(spec, key, value)
    monkeypatch.setattr(engine.build.accuracy, "serves_e4m3", lambda _: True)
    monkeypatch.setattr(engine.build.accuracy, "int8_scheme", lambda *_: "int8")
    act_clock(monkeypatch)
    with pytest.raises(ConfigError, match=r"scaling = 'token': .* static scales.*--kernels portable"):
        study_accuracy(calibrate(Budget(9, 9)), spec, checkpoint, tmp_path, lambda stage: None)
    monkeypatch.setattr(engine.build.accuracy, "int8_scheme", lambda *_: "int8_exact")
    found = study_accuracy(calibrate(Budget(9, 9)), spec, checkpoint, tmp_path, lambda stage: None).study
    assert [each.name for each in found.results] == ["bf16", "e4m3_token", "auto"]


def test_what_cannot_be_calibrated_is_said(tmp_path: Path, tiny_causal: Any, calibrate: Any) -> None:
    with pytest.raises(ConfigError, match=r"precision = 'auto'.*needs texts"):
        BuildSpec(tiny_causal.checkpoint, tmp_path / "no", "tiny", precision="auto")
    checkpoint = load_checkpoint(tiny_causal.checkpoint, max_tokens=64)
    with pytest.raises(ConfigError, match=r"tokens_per_sample = 64.*built for 32"):
        load_texts(calibrate(Budget()), checkpoint, BatchBounds(8, 256, 32))


def test_calibration_texts_are_looked_at_before_anything_else(tmp_path: Path, calibrate: Any) -> None:
    calibration = calibrate(Budget())
    with calibration.file.open("a") as file:
        file.write("\nq: shoes")
    stages: list[str] = []
    spec = BuildSpec(tmp_path / "no checkpoint", tmp_path / "out", "tiny", calibrate=calibration)
    with pytest.raises(ConfigError, match=r"texts\.jsonl, line 31'.*'q: shoes' is not JSON"):
        build_artifact(spec, stages.append)
    assert not stages


def test_pipelines_are_looked_at_before_anything_else(tmp_path: Path, calibrate: Any) -> None:
    calibrate(Budget())
    path = tmp_path / "pair.yaml"
    path.write_text(path.read_text() + "  answer: {kind: encoder, inputs: [model], output: top_k}\n")
    calibration = Calibration(tmp_path / "texts.jsonl", (read_pipeline(path),), Budget())
    stages: list[str] = []
    spec = BuildSpec(tmp_path / "no checkpoint", tmp_path / "out", "tiny", calibrate=calibration)
    with pytest.raises(ConfigError, match=r"pair\.yaml: nodes\.answer\.output = 'top_k': needs TopK, but"):
        build_artifact(spec, stages.append)
    assert not stages


def test_a_plan_is_restricted_to_what_was_chosen() -> None:
    layer = LayerPlan("fp8", "fp8", "bf16", "fp8", True)
    chosen = [
        {"qkv": "bf16", "output": "e4m3_static", "gate_up": "e4m3_static", "down": "e4m3_static"},
        dict.fromkeys(("qkv", "output", "gate_up", "down"), "bf16"),
    ]
    first, second = restrict_plan(Plan((layer, layer), "static"), chosen).layers
    assert (first.qkv, first.output, first.gate_up, first.down) == ("bf16", "fp8", "bf16", "fp8")
    assert {second.qkv, second.output, second.gate_up, second.down} == {"bf16"}


def test_a_single_score_stands_against_a_zero(tiny_classifier: Any) -> None:
    checkpoint = load_checkpoint(tiny_classifier.checkpoint, max_tokens=64)
    assert checkpoint.score is not None
    one = model_of(replace(checkpoint, score=checkpoint.score[:1]))
    assert one.head.shape[0] == 2
    assert not one.head[1].any()
    assert len(model_of(checkpoint).head) == 3
    with pytest.raises(ConfigError, match="a model without a head"):
        model_of(replace(checkpoint, score=None))
