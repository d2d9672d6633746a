"""What a plan's time is, and that a choice follows the times that it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.quant.planning import families
from engine.quant.speed import estimate_times
from engine.quant.times import Times

MEASURED = Times(
    "measured on a device", 100.0,
    {"gate_up": {"e4m3_static": 30.0, "int8": 25.0}, "down": {"int8": -2.0}}, {"gate_up": 4.0}, (1024,),
)  # fmt: skip


def test_a_plan_is_the_layers_less_what_its_matrices_save() -> None:
    assert MEASURED.plan_us(3, {}) == 300.0
    plan = {(0, "gate_up"): "e4m3_static", (1, "gate_up"): "int8", (2, "down"): "int8"}
    assert MEASURED.plan_us(3, plan) == 300.0 - 30.0 - 25.0 + 2.0
    assert MEASURED.plan_us(3, plan, frozenset({(1, "gate_up")})) == 300.0 - 30.0 - 21.0 + 2.0


def test_what_was_not_measured_saves_nothing() -> None:
    assert MEASURED.saved_us("qkv", "int8") == 0.0
    assert MEASURED.saved_us("gate_up", "e4m3_token") == 0.0
    assert MEASURED.saved_us("gate_up", "bf16") == 0.0
    assert MEASURED.saved_us("gate_up", "int8_exact", exact=True) == 21.0


def test_the_estimate(make_decoder: Any) -> None:
    architecture = make_decoder()[0]
    times = estimate_times(architecture)
    assert times.source.startswith("estimated")
    assert not times.batches
    assert set(times.saved) == {"qkv", "output", "gate_up", "down"}
    for saved in times.saved.values():
        assert saved["e4m3_static"] > saved["int8"] > 0
        assert saved["e4m3_static"] > saved["e4m3_token"]
    assert times.saved_us("qkv", "int8", exact=True) < times.saved_us("qkv", "int8")
    everything = {(layer, kind): "int8" for layer in range(2) for kind in times.saved}
    assert 1 < times.plan_us(2, {}) / times.plan_us(2, everything) < 2
    assert times.layer > sum(saved["e4m3_static"] for saved in times.saved.values())


def test_the_estimate_is_of_a_shape_that_was_measured(make_decoder: Any) -> None:
    """tools/bench/RESULTS.md: microseconds of the products at 4,096 tokens."""
    shape = replace(
        make_decoder()[0],
        hidden_size=1024,
        intermediate_size=3072,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
    )
    saved = estimate_times(shape).saved
    found = {kind: each["e4m3_static"] for kind, each in saved.items()}
    assert found == pytest.approx({"qkv": 20.3, "output": 8.8, "gate_up": 47.7, "down": 14.9}, abs=0.1)


@pytest.mark.parametrize(
    ("schemes", "int8", "names"),
    [
        (["e4m3_static", "int8"], 28.0, ["int8", "int8+e4m3"]),
        (["e4m3_static", "int8_exact"], 20.0, ["int8", "int8+e4m3", "e4m3_static"]),
        (["int8_exact"], 20.0, ["int8", "int8, still"]),
        (["bf16", "e4m3_token"], 20.0, ["e4m3_token"]),
    ],
)
def test_e4m3_alone_is_looked_at_where_int8_is_slow(schemes: Any, int8: float, names: list[str]) -> None:
    times = Times("measured", 100.0, {"gate_up": {"e4m3_static": 30.0, schemes[-1]: int8}}, {})
    assert [family.name for family in families(schemes, times)] == names
