"""Plans for devices that are not there: which layers go which path, and what is said of the others."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from engine.errors import ConfigError
from engine.models.plan import MATRICES, HopperKernels, Plan, Precision, choose_plan, restrict_plan
from engine.packed import BatchBounds
from tools.bench.shapes import SHAPES

KERNELS = HopperKernels("0123456789abcdef")
BOUNDS = BatchBounds(256, 8192, 512)


def plan_of(precision: Precision = "fp8", arch: int = 90, static: bool = True, **changes: object) -> Plan:
    kernels, bounds = changes.pop("kernels", KERNELS), changes.pop("bounds", BOUNDS)
    architecture = dataclasses.replace(SHAPES["qwen3-0.6b"], **changes)
    return choose_plan(architecture, precision, arch=arch, static=static, kernels=kernels, bounds=bounds)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", ["bf16", "fp8", "int8"])
def test_benchmarked_models_go_the_hopper_path_whole(shape: str, precision: Precision) -> None:
    architecture = SHAPES[shape]
    plan = choose_plan(architecture, precision, arch=90, static=True, kernels=KERNELS, bounds=BOUNDS)
    assert plan.runs() == [("hopper", range(architecture.num_layers))]
    assert plan.library == KERNELS.library
    assert plan.notes == ()
    assert plan.quantises == (precision != "bf16")
    assert plan.rotated == (precision == "int8")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": 89}, r"compute capability is \(8, 9\)"),
        ({"arch": 100}, r"compute capability is \(10, 0\)"),
        ({"arch": 120}, r"compute capability is \(12, 0\)"),
        ({"static": False}, "scaled per token"),
        ({"kernels": HopperKernels(None, "no nvcc")}, "no nvcc"),
        ({"head_dim": 32}, "head_dim 32"),
        ({"output_bias": True}, "has a bias"),
        ({"hidden_size": 4096}, "hidden 4096"),
        ({"bounds": BatchBounds(9000, 9000, 8)}, "bounds.samples is over 8192"),
        ({"bounds": BatchBounds(2, 70000, 70000)}, "bounds.tokens_per_sample is over 65536"),
    ],
)
def test_whatever_is_not_served_goes_the_portable_path_and_says_why(changes, reason: str) -> None:
    plan = plan_of(**changes)
    assert plan.runs() == [("portable", range(28))]
    assert plan.library is None
    (note,) = [note for note in plan.notes if note.startswith("hopper kernels: ")]
    assert note.endswith("; every layer on the portable path")
    assert re.search(reason, note)


def test_bf16_needs_no_scales() -> None:
    assert plan_of("bf16", static=False).runs() == [("hopper", range(28))]


def test_a_mixed_plan_is_runs_of_one_path() -> None:
    plan = plan_of()
    portable = dataclasses.replace(plan.layers[0], path="portable")
    mixed = dataclasses.replace(plan, layers=(portable, *plan.layers[1:26], portable, portable))
    assert mixed.runs() == [("portable", range(1)), ("hopper", range(1, 26)), ("portable", range(26, 28))]
    assert Plan.from_manifest(mixed.to_manifest()) == mixed


def test_a_plan_of_an_older_manifest_is_portable() -> None:
    values = plan_of("bf16").to_manifest()
    del values["library"]
    for layer in values["layers"]:
        del layer["path"]
    old = Plan.from_manifest(values)
    assert old.library is None
    assert old.runs() == [("portable", range(28))]


def test_too_old_a_device() -> None:
    with pytest.raises(ConfigError, match="sm_75"):
        plan_of(arch=75)


@pytest.mark.parametrize(
    "changes", [{"kernels": HopperKernels(None, "no nvcc")}, {"arch": 80}, {"hidden_size": 4096}]
)
def test_int8_goes_the_portable_path_where_its_other_kernels_do_not_serve(changes) -> None:
    plan = plan_of("int8", **changes)
    assert plan.rotated
    assert plan.runs() == [("portable", range(28))]
    assert {getattr(plan.layers[5], matrix) for matrix in MATRICES} == {"int8"}
    assert plan.inputs(5) == {"qkv": "rows", "output": "heads", "gate_up": "rows", "down": "blocks"}
    (note,) = plan.notes
    assert note.startswith("hopper kernels: ")


def test_inputs_of_a_mixed_plan() -> None:
    """A rotated stream's static scales are of raw rows, which the portable norm does not quantise."""
    mixed = {"qkv": "e4m3_static", "output": "e4m3_static", "gate_up": "int8", "down": "bf16"}
    plan = restrict_plan(plan_of("int8", arch=89), [mixed] * 28)
    assert plan.inputs(0) == {"qkv": "token", "output": "static", "gate_up": "rows", "down": "none"}
    plan = restrict_plan(plan_of("int8", arch=89, static=False), [mixed] * 28)
    assert plan.inputs(0)["output"] == "token"


def test_no_matrix_can_be_in_int8() -> None:
    plan = plan_of("int8", intermediate_size=3080, hidden_size=1032, arch=80)
    assert not plan.quantises
    assert "int8: no matrix can be in it; every one stays bf16" in plan.notes


@pytest.mark.parametrize(
    ("changes", "stay"),
    [
        ({"intermediate_size": 3136}, {"gate_up", "down"}),
        ({"hidden_size": 2048}, set()),
    ],
)
def test_int8_leaves_single_matrices_in_bf16(changes, stay: set[str]) -> None:
    plan = plan_of("int8", **changes)
    assert plan.runs() == [("hopper", range(28))]
    layer = plan.layers[3]
    assert {name for name in ("qkv", "output", "gate_up", "down") if getattr(layer, name) == "bf16"} == stay
    assert all(any(note.startswith(name) and "stays bf16" in note for note in plan.notes) for name in stay)


def test_a_plan_comes_back_from_its_manifest() -> None:
    plan = plan_of("int8")
    layers = (dataclasses.replace(plan.layers[0], exact=("qkv",)), *plan.layers[1:])
    plan = dataclasses.replace(plan, layers=layers)
    assert Plan.from_manifest(json.loads(json.dumps(plan.to_manifest()))) == plan
    older = plan.to_manifest()
    del older["rotated"], older["layers"][0]["exact"]
    assert not Plan.from_manifest(older).rotated
