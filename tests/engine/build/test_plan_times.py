"""By which times a build chooses, and for what its device is timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.build.cuda_package
import engine.build.plan_times
from engine.beam.bounds import BeamBounds
from engine.build.plan_times import find_times
from engine.build.spec import BuildSpec
from engine.models.architecture import Architecture, Rope
from engine.models.plan import HopperKernels, Plan
from engine.packed import BatchBounds
from engine.quant.speed import estimate_times
from engine.quant.times import Times

A = Architecture(97, 128, 256, 2, 2, 1, 64, 1e-5, Rope("default", (1.0,) * 32, 1.0))
BOUNDS = BatchBounds(samples=16, tokens=2048, tokens_per_sample=128)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An H200 acted out: what it was asked to time."""
    asked: dict[str, Any] = {"compiled": 0}

    def compile_kernels(_: Path) -> tuple[HopperKernels, Path]:
        asked["compiled"] += 1
        return HopperKernels("digest"), Path("hopper-digest.so")

    def measure(
        _: Architecture, plans: dict[str, Plan], batches: Sequence[Any], device: torch.device
    ) -> Times:
        asked.update(plans=plans, batches=batches, device=device.type)
        return Times("measured on an H200", 1.0, {}, {})

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(engine.build.cuda_package, "compile_kernels", compile_kernels)
    monkeypatch.setattr(engine.build.plan_times, "measure_times", measure)
    return asked


def make_spec(tmp_path: Path, device: str, precision: str | None, **more: Any) -> BuildSpec:
    spec = BuildSpec(tmp_path, tmp_path / "out", "x", bounds=BOUNDS, **more)
    for key, value in (("device", device), ("precision", precision)):
        object.__setattr__(spec, key, value)  # a spec refuses them without a device
    return spec


def test_a_device_is_timed_as_it_will_serve(tmp_path: Path, clock: dict[str, Any]) -> None:
    stages: list[str] = []
    times = find_times(make_spec(tmp_path, "cuda", "auto"), A, ["e4m3_static", "int8"], stages.append)
    assert times.source == "measured on an H200"
    assert stages == ["compiling the kernels", "measuring layers on the device"]
    assert clock["compiled"] == 1
    assert clock["device"] == "cuda"
    assert clock["batches"] == ((128,) * 8, (128,) * 16)
    layers = {scheme: plan.layers[0] for scheme, plan in clock["plans"].items()}
    assert {scheme: (layer.path, layer.down) for scheme, layer in layers.items()} == {
        "e4m3_static": ("hopper", "fp8"), "int8": ("hopper", "int8"),
    }  # fmt: skip
    assert {plan.library for plan in clock["plans"].values()} == {"digest"}


def test_a_search_is_timed_at_its_steps(tmp_path: Path, clock: dict[str, Any]) -> None:
    spec = make_spec(tmp_path, "cuda", "auto", beam=BeamBounds(100, 4, 16))
    find_times(spec, A, ["e4m3_static"], lambda _: None)
    assert clock["compiled"] == 0
    assert [sum(lengths) for lengths in clock["batches"]] == [100, 500, 1000, 1500, 1600]
    layer = clock["plans"]["e4m3_static"].layers[0]
    assert (layer.path, layer.qkv, layer.gate_up) == ("portable", "bf16", "fp8")


@pytest.mark.parametrize(("device", "precision"), [("cpu", "auto"), ("cpu", None), ("cuda", None)])
def test_what_runs_no_kernels_of_ours_is_estimated(
    device: str, precision: str | None, tmp_path: Path, clock: dict[str, Any]
) -> None:
    assert find_times(make_spec(tmp_path, device, precision), A, ["int8"], lambda _: None) == estimate_times(
        A
    )
    assert "plans" not in clock
