"""A whole build with `precision = "auto"` for a device, acted out on the CPU: from times to an artifact.

Only what asks for a device is replaced: its capability, its clock, its lanes of graphs, its name in a spec.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.artifact
import engine.build.layer_times
import engine.build.package
from acted_device import ActedDevice
from auto_builds import BEAM_BOUNDS, calibration, check_study, run_oracles, save_model
from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.build import BuildSpec, build_artifact
from engine.manifest import Manifest
from engine.packed import BatchBounds, pack
from engine.quant.budget import Budget
from engine.runtime.lanes import LanePool
from hopper_models import QUERIES, answer_queries

SIZES = {"hidden_size": 192, "intermediate_size": 256}
WINNERS = 0.8  # of 8; emulated, int8 of every gate and down projection keeps 0.91, e4m3 0.84
BOUNDS = BatchBounds(samples=32, tokens=1024, tokens_per_sample=128)
LENGTHS = (1, 64, 30, 2, 17)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """What its clock has said: each second run takes 5% less."""
    said: list[tuple[float, float]] = []
    describe = engine.build.package._describe

    def compare_us(one: Any, other: Any, _: torch.device) -> tuple[float, float]:
        assert one().shape == other().shape
        said.append((100.0, 95.0))
        return said[-1]

    def describe_as_cpu(spec: BuildSpec, *more: Any) -> Manifest:
        spec = copy(spec)
        object.__setattr__(spec, "device", "cpu")
        return describe(spec, *more)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(engine.build.layer_times, "compare_us", compare_us)
    monkeypatch.setattr(engine.build.package, "_describe", describe_as_cpu)
    monkeypatch.setattr(engine.build.package, "GraphLanePool", LanePool)
    monkeypatch.setattr(engine.artifact, "GraphLanePool", LanePool)
    return said


def test_from_times_to_answers(tmp_path: Path, device: list[tuple[float, float]], sample: Any) -> None:
    checkpoint = save_model(tmp_path / "checkpoint", 2, **SIZES)
    spec = BuildSpec(
        checkpoint, tmp_path / "out", "tiny", dtype="bfloat16", bounds=BOUNDS, kernels="portable",
        calibrate=calibration(tmp_path, Budget(9, 9)),
    )  # fmt: skip
    for key, value in (("device", ActedDevice("cpu")), ("precision", "auto")):
        object.__setattr__(spec, key, value)  # a spec refuses them without a device
    stages: list[str] = []
    artifact = Artifact.open(build_artifact(spec, stages.append))
    check_study(artifact, ["e4m3_static", "int8_exact"], [1024], "measured on cpu")
    assert len(device) == 8  # every kind in either type
    assert artifact.quantises
    assert stages.index("measuring layers on the device") < stages.index("measuring bf16")

    packed = pack([list(range(length)) for length in LENGTHS])
    made, plain = run_oracles(checkpoint, artifact, packed)
    pool = artifact.open_lanes(1)
    found = pool.executor.submit(pool.forward, packed).result(60)
    pool.close()
    assert float((found - made).norm() / made.norm()) < 0.03
    assert float((found - plain).norm() / plain.norm()) < 0.3
    assert len(answer_queries(artifact.path, "cpu", sample)) == 3 * len(QUERIES)


def test_a_search_has_int8_where_its_winners_stay(tmp_path: Path, device: list[tuple[float, float]]) -> None:
    checkpoint, beam = save_model(tmp_path / "checkpoint", 2, vocab_size=368, **SIZES), BeamBounds(8, 2, 8)
    spec = BuildSpec(
        checkpoint, tmp_path / "out", "tiny", dtype="bfloat16", bounds=BEAM_BOUNDS, beam=beam,
        calibrate=calibration(tmp_path, Budget(9, 9, WINNERS), beam),
    )  # fmt: skip
    for key, value in (("device", ActedDevice("cpu")), ("precision", "auto")):
        object.__setattr__(spec, key, value)
    artifact = Artifact.open(build_artifact(spec))
    check_study(artifact, ["e4m3_static", "int8_exact"], [8, 40, 64], "measured on cpu")
    assert len(device) == 2 * 2 * 3  # gate_up and down, in either type, at each size
    manifest = artifact.manifest
    assert manifest.plan is not None
    assert manifest.accuracy is not None
    assert manifest.beam is not None
    assert {(layer["qkv"], layer["output"]) for layer in manifest.plan["layers"]} == {("bf16", "bf16")}
    assert "int8" in {layer[kind] for layer in manifest.plan["layers"] for kind in ("gate_up", "down")}
    assert manifest.accuracy["measured"]["ranks"]["winners"] >= WINNERS
    assert manifest.beam.parity.max_abs_error < 0.5
