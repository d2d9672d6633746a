"""Layers that are timed: every kind in every scheme runs as it is served; what the times become of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.build.layer_times import batches_within, keep_one, measure_times
from engine.build.random_layers import random_layer
from engine.models.architecture import Architecture, Rope
from engine.models.plan import MATRICES, HopperKernels, Plan, Precision, choose_plan
from engine.packed import BatchBounds

CPU = torch.device("cpu")
BOUNDS = BatchBounds(samples=8, tokens=256, tokens_per_sample=64)
LENGTHS = (5, 1, 3)


def make_architecture(**options: Any) -> Architecture:
    inv_freq = tuple(1e4 ** (-2 * i / 64) for i in range(32))
    return Architecture(97, 128, 256, 2, 2, 1, 64, 1e-5, Rope("default", inv_freq, 1.0), **options)


def plan_of(precision: Precision, *, hopper: bool, static: bool = True, **options: Any) -> Plan:
    kernels = HopperKernels("digest" if hopper else None, "none here")
    a = make_architecture(**options)
    return choose_plan(a, precision, arch=90, static=static, kernels=kernels, bounds=BOUNDS)


@pytest.mark.parametrize("kind", [*MATRICES, None])
@pytest.mark.parametrize(
    ("precision", "hopper", "static"),
    [
        ("fp8", True, True),
        ("int8", True, True),
        ("fp8", False, True),
        ("fp8", False, False),
        ("int8", False, True),
    ],
)
def test_a_layer_of_each_kind_runs(
    precision: Precision, hopper: bool, static: bool, kind: str | None
) -> None:
    plan = plan_of(precision, hopper=hopper, static=static, qk_norm=True)
    layer = keep_one(plan.layers[0], kind)
    assert layer.path == ("hopper" if hopper else "portable")
    a = make_architecture(qk_norm=True)
    first, again = (random_layer(a, layer, plan.scaling, plan.library, LENGTHS, CPU)() for _ in range(2))
    assert first.shape == (sum(LENGTHS), a.hidden_size)
    assert torch.equal(first, again)
    assert 0.1 < float(first.float().square().mean().sqrt()) < 20  # no clock runs on zeros or infinities


@pytest.mark.parametrize("kind", ["qkv", "gate_up"])
def test_exact_scales_run(kind: str) -> None:
    plan = plan_of("int8", hopper=True, qkv_bias=True)
    layer = replace(keep_one(plan.layers[0], kind), exact=(kind,))
    x = random_layer(make_architecture(qkv_bias=True), layer, "static", plan.library, LENGTHS, CPU)()
    assert torch.isfinite(x).all()


def test_times_are_of_what_each_kind_saves() -> None:
    """The clock here: every call saves one microsecond more than the one before."""
    calls: list[float] = []

    def compare(one: Any, other: Any) -> tuple[float, float]:
        one(), other()
        calls.append(10.0 - len(calls))
        return 10.0, calls[-1]

    plans = {"e4m3_static": plan_of("fp8", hopper=True), "int8": plan_of("int8", hopper=True)}
    times = measure_times(make_architecture(), plans, [(512,), (1024,)], CPU, compare)
    assert times.source == "measured on cpu"
    assert times.batches == (512, 1024)
    assert times.layer == pytest.approx((10 * 8 + 10 * 4) / 2)  # of 4,096 tokens, mean of both batches
    assert {kind: set(saved) for kind, saved in times.saved.items()} == {
        kind: {"e4m3_static", "int8"} for kind in MATRICES
    }
    assert times.saved["qkv"]["e4m3_static"] == pytest.approx((0 * 8 + 1 * 4) / 2)
    assert times.saved["output"]["e4m3_static"] == pytest.approx((2 * 8 + 3 * 4) / 2)
    assert set(times.exact) == {"qkv", "gate_up"}
    assert len(calls) == 2 * (4 + 4 + 2)


def test_what_stays_bf16_saves_nothing() -> None:
    narrow = replace(make_architecture(), intermediate_size=192)  # int8 wants 128 columns
    plan = choose_plan(narrow, "int8", arch=90, static=True, kernels=HopperKernels("digest"), bounds=BOUNDS)
    times = measure_times(narrow, {"int8": plan}, [(4,)], CPU, lambda *_: (2.0, 1.0))
    assert set(times.saved) == {"qkv", "output"}
    none = plan_of("bf16", hopper=False)
    times = measure_times(make_architecture(), {"int8": none}, [(4,)], CPU, lambda *_: (2.0, 1.0))
    assert (times.saved, times.layer) == ({}, 2048.0)


def test_exact_scales_take_nothing_on_the_portable_path() -> None:
    plans = {"int8_exact": plan_of("int8", hopper=False)}
    times = measure_times(make_architecture(), plans, [(4,)], CPU, lambda *_: (2.0, 1.0))
    assert times.exact == {}
    assert [times.saved_us(kind, "int8_exact", exact=True) for kind in MATRICES] == [1024.0] * 4


def test_batches_are_what_the_bounds_allow() -> None:
    assert batches_within(BatchBounds(256, 8192, 512)) == ((128,) * 8, (128,) * 16, (128,) * 32)
    assert batches_within(BatchBounds(16, 2048, 512)) == ((128,) * 8, (128,) * 16)
    assert batches_within(BatchBounds(4, 2048, 512)) == ((256,) * 4, (512,) * 4)
    assert batches_within(BatchBounds(64, 600, 100)) == ((100,) * 6,)
    assert batches_within(BatchBounds(4, 8192, 100)) == ((100,) * 4,)
    assert batches_within(BatchBounds(256, 8192, 512), (150,)) == ((128, 22),)
