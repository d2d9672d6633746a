"""Layers timed on the device: both paths, and what a build takes of it. Signs of large differences alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.beam.bounds import BeamBounds
from engine.build.hopper_library import compile_kernels
from engine.build.layer_times import measure_times
from engine.build.plan_times import find_times
from engine.build.spec import BuildSpec
from engine.models.architecture import Architecture, Rope
from engine.models.plan import MATRICES, HopperKernels, Plan, Precision, choose_plan
from engine.packed import BatchBounds
from engine.quant.times import Times

pytestmark = pytest.mark.gpu
BATCHES = ((128,) * 16,)
BOUNDS = BatchBounds(256, 2048, 512)
A = Architecture(
    1000, 1024, 3072, 2, 16, 8, 128, 1e-6,
    Rope("default", tuple(1e6 ** (-i / 64) for i in range(64)), 1.0), qk_norm=True,
)  # fmt: skip


def capability() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def plan(precision: Precision, kernels: HopperKernels, *, static: bool = True) -> Plan:
    return choose_plan(A, precision, arch=capability(), static=static, kernels=kernels, bounds=BOUNDS)


def check(times: Times, schemes: set[str]) -> None:
    assert times.source == f"measured on {torch.cuda.get_device_name()}"
    assert set(times.saved) == set(MATRICES)
    assert all(set(saved) == schemes for saved in times.saved.values())
    assert times.layer > sum(max(saved.values()) for saved in times.saved.values()) > 0
    for scheme in schemes - {"e4m3_token"}:
        assert (
            times.saved["gate_up"][scheme] > 0.05 * times.layer
        )  # half of its time, and that is half of a layer's


@pytest.mark.parametrize("static", [True, False])
def test_portable_layers(static: bool) -> None:
    if capability() < 89:
        pytest.skip("no e4m3 tensor cores")
    scheme: Any = "e4m3_static" if static else "e4m3_token"
    plans = {scheme: plan("fp8", HopperKernels(None, "not asked for"), static=static)}
    check(measure_times(A, plans, BATCHES, torch.device("cuda")), {scheme})


def test_portable_integers() -> None:
    plans: dict[Any, Plan] = {"int8_exact": plan("int8", HopperKernels(None, "not asked for"))}
    times = measure_times(A, plans, BATCHES, torch.device("cuda"))
    assert {kind: set(saved) for kind, saved in times.saved.items()} == {k: {"int8_exact"} for k in MATRICES}
    assert times.exact == {}  # all of them are
    assert times.layer > sum(saved["int8_exact"] for saved in times.saved.values())


def test_hopper_layers(tmp_path: Path) -> None:
    if capability() != 90:
        pytest.skip("no GPU of compute capability 9.0")
    kernels, _ = compile_kernels(tmp_path)
    if kernels.library is None:
        pytest.skip(kernels.reason)
    plans: dict[Any, Plan] = {"e4m3_static": plan("fp8", kernels), "int8": plan("int8", kernels)}
    times = measure_times(A, plans, BATCHES, torch.device("cuda"))
    check(times, {"e4m3_static", "int8"})
    assert set(times.exact) == {"qkv", "gate_up"}
    assert min(times.exact.values()) > 0  # a launch more


@pytest.mark.parametrize("beam", [None, BeamBounds(20, 2, 4)])
def test_a_build_measures_as_it_will_serve(beam: BeamBounds | None, tmp_path: Path) -> None:
    spec = BuildSpec(
        tmp_path, tmp_path / "out", "x", device="cuda", precision="fp8", kernels="portable", bounds=BOUNDS,
        beam=beam,
    )  # fmt: skip
    stages: list[str] = []
    times = find_times(spec, A, ["e4m3_static"], stages.append)
    assert stages == ["measuring layers on the device"]
    assert times.batches == ((1024, 2048) if beam is None else (20, 80))
    assert set(times.saved) == ({"gate_up", "down"} if beam else set(MATRICES)) or capability() < 89
