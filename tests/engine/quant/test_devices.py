"""Whatever is emulated or rounded is computed where the weights are, and nothing beside them.

Tensors that are made without a device land on `meta` here: what mixes them with the weights, fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch

import engine.quant.agreement
import engine.quant.int8
import engine.quant.rotation
from engine.build.compensated import compensate_e4m3
from engine.build.integers import round_decoder
from engine.models.plan import HopperKernels, Plan, choose_plan
from engine.models.plan import Precision as PlanPrecision
from engine.quant.budget import Budget
from engine.quant.laboratory import Model
from engine.quant.requests import TextSets
from engine.quant.speed import estimate_times
from engine.quant.study import run_study
from engine.quant.texts import Text
from random_decoders import make_architecture, random_weights

CPU = torch.device("cpu")
ARCHITECTURE = make_architecture(hidden_size=128, intermediate_size=256, qk_norm=True, num_layers=2)
KERNELS = {"hopper": HopperKernels("digest"), "portable": HopperKernels(None, "none")}


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The default device. What is made on the CPU and moved, or of token ids, stays there."""
    for module, name in (
        (engine.quant.rotation, "flat_orthogonal"),
        (engine.quant.rotation, "hadamard"),
        (engine.quant.agreement, "exact_rows"),
    ):
        function = getattr(module, name)
        for each in list(sys.modules.values()):
            if getattr(each, "__name__", "").startswith("engine.") and getattr(each, name, None) is function:
                monkeypatch.setattr(each, name, on_cpu(function))
    return torch.device("meta")


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with CPU:
            return function(*args, **options)

    return run


def draw_texts() -> list[Text]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 64, (30, 40), generator=generator).tolist()
    return [Text(tuple(each), (3, 4), prefix=2) for each in ids]


def plan(precision: PlanPrecision, path: str, *, static: bool = True) -> Plan:
    return choose_plan(ARCHITECTURE, precision, arch=90, static=static, kernels=KERNELS[path])


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("path", KERNELS)
def test_integers(path: str, trusted: bool, nowhere: torch.device) -> None:
    texts, weights = draw_texts()[:8], random_weights(ARCHITECTURE)
    with nowhere:
        made = round_decoder(
            ARCHITECTURE, weights, plan("int8", path), texts, trusted=trusted, say=lambda _: None, device=CPU
        )
    tensors = [*made.weights.values(), made.unrotate]
    tensors += [
        x for layer in made.layers.values() for m in layer.matrices.values() for x in vars(m).values()
    ]
    assert {tensor.device for tensor in tensors} == {CPU}


@pytest.mark.parametrize("static", [True, False])
def test_e4m3(static: bool, nowhere: torch.device) -> None:
    texts, weights = draw_texts()[:8], random_weights(ARCHITECTURE)
    with nowhere:
        changed, rounded = compensate_e4m3(
            ARCHITECTURE, weights, plan("fp8", "portable", static=static), texts, CPU
        )
    tensors = [*changed.values()]
    tensors += [x for layer in rounded.values() for m in layer.matrices.values() for x in vars(m).values()]
    assert {tensor.device for tensor in tensors} == {CPU}


def test_a_study(nowhere: torch.device) -> None:
    texts, weights = draw_texts(), random_weights(ARCHITECTURE)
    model = Model(ARCHITECTURE, weights, torch.randn(64, 128, generator=torch.Generator().manual_seed(1)))
    sets = TextSets(tuple(texts[:10]), tuple(texts[10:20]), tuple(texts[20:]))
    with nowhere:
        found = run_study(model, sets, ("e4m3_static", "int8"), Budget(9, 9), estimate_times(ARCHITECTURE))
    assert found.auto.eight_bits > 0
