"""int8 on the portable path: decoders of engine.quant's matrices, through the operations' oracles."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine.build.integers import round_decoder
from engine.models.architecture import Architecture
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_layers import CudaLayer
from engine.models.cuda_weights import UNROTATE, prepare_weights, restore_weights
from engine.models.decoder import PackedDecoder
from engine.models.plan import Plan, choose_plan, restrict_plan
from engine.packed import BatchBounds, pack
from engine.quant.emulation import EmulatedDecoder
from engine.quant.preparation import prepare
from engine.quant.schemes import Form
from engine.quant.texts import Text
from random_decoders import make_architecture, random_weights

BOUNDS = BatchBounds(8, 256, 96)
SAMPLES = [[5, 9, 2], [7] * 40 + list(range(30)), [1], list(range(30))]
TEXTS = [Text(tuple(sample)) for sample in SAMPLES]
ALL = dict.fromkeys(("qkv", "output", "gate_up", "down"), "int8")
KINDS = {
    "norm": make_architecture(hidden_size=192, intermediate_size=256, qk_norm=True),
    "bias": make_architecture(
        hidden_size=128, intermediate_size=256, qkv_bias=True, output_bias=True, mlp_bias=True,
        num_heads=7, num_kv_heads=1,
    ),
    "apart": make_architecture(hidden_size=160, intermediate_size=384),
}  # fmt: skip


def plan_of(architecture: Architecture, *, static: bool = True) -> Plan:
    return choose_plan(architecture, "int8", arch=90, static=static)


def make(
    architecture: Architecture, weights: dict[str, Tensor], plan: Plan, trusted: bool, form: Form = "stream"
) -> tuple[Any, dict[str, Tensor], CudaDecoder]:
    made = round_decoder(architecture, weights, plan, TEXTS, trusted=trusted, say=lambda _: None, form=form)
    prepared = prepare_weights(made.weights, architecture, made.plan, max_seqlen=96, rounded=made.layers)
    prepared |= {name: prepared[name].bfloat16() for name in ("embed_tokens.weight", "norm.weight")}
    prepared |= {UNROTATE: made.unrotate}
    return made, prepared, CudaDecoder.from_weights(architecture, prepared, made.plan, BOUNDS)


def run(decoder: torch.nn.Module) -> Tensor:
    packed = pack(SAMPLES)
    with torch.inference_mode():
        out: Tensor = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)
    return out[: packed.num_samples].float()


def error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def plain(architecture: Architecture, weights: dict[str, Tensor]) -> Tensor:
    return run(PackedDecoder.from_weights(architecture, weights, 96))


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_near_the_plain_decoder(kind: str, trusted: bool) -> None:
    architecture = KINDS[kind]
    weights = random_weights(architecture)
    made, _, decoder = make(architecture, weights, plan_of(architecture), trusted)
    assert error(run(decoder), plain(architecture, weights)) < 0.06  # fp8 is at 0.1
    assert made.plan.runs() == [("portable", range(3))]
    assert all(layer.exact == ("qkv", "gate_up") for layer in made.plan.layers)
    assert Plan.from_manifest(made.plan.to_manifest()) == made.plan


def test_a_layer_computes_what_the_emulation_does() -> None:
    """The same layers of the same stream, emulated with the same matrices: roundings to bf16 let some
    integers fall to the next step, most losses are the same."""
    architecture = KINDS["norm"]
    weights, packed = random_weights(architecture), pack(SAMPLES)
    made, _, decoder = make(architecture, weights, plan_of(architecture), trusted=False)
    emulated = EmulatedDecoder(architecture, made.weights, made.unrotate, torch.bfloat16)
    matrices = prepare(emulated, packed, None, ["int8_exact"], "stream", compensated=False)["int8_exact"]
    stream, batch = emulated.begin(packed)
    ours = decoder._batch(packed.positions, packed.cu_seqlens)
    for index, layer in enumerate(decoder.layers):
        exact = emulated.step(index, stream, batch, {})
        theirs = emulated.step(index, stream, batch, matrices)
        y, delta = cast(CudaLayer, layer)(stream.x.bfloat16(), None, ours)
        assert delta is None
        lost, expected = y.float() - exact.x, theirs.x - exact.x
        assert float(lost.norm() / expected.norm()) == pytest.approx(1.0, abs=0.1)
        assert float((lost - expected).norm()) < 0.8 * float(expected.norm())
        assert float(expected.norm()) < 0.1 * float((exact.x - stream.x).norm())
        stream = exact


@pytest.mark.parametrize("stay", ["qkv", "output", "gate_up", "down"])
@pytest.mark.parametrize("scheme", ["bf16", "e4m3_static"])
@pytest.mark.parametrize("static", [True, False])
def test_matrices_may_be_of_another_type(stay: str, scheme: str, static: bool) -> None:
    architecture = KINDS["norm"]
    weights = random_weights(architecture)
    plan = restrict_plan(plan_of(architecture, static=static), [ALL, ALL | {stay: scheme}, ALL])
    made, prepared, decoder = make(architecture, weights, plan, trusted=True)
    assert error(run(decoder), plain(architecture, weights)) < 0.1
    assert getattr(made.plan.layers[1], stay) == ("bf16" if scheme == "bf16" else "fp8")
    assert stay not in made.plan.layers[1].exact
    narrow = scheme != "bf16" and static and stay in ("output", "down")
    modules = {"qkv": "attention.qkv"}
    assert (f"layers.1.{modules.get(stay, stay)}.input_scales" in prepared) == narrow


def test_int8_beside_e4m3_in_a_stream_of_its_own_channels() -> None:
    architecture = KINDS["norm"]
    weights = random_weights(architecture)
    mixed = {"qkv": "e4m3_static", "output": "int8", "gate_up": "e4m3_static", "down": "int8"}
    chosen = [mixed, mixed | {"output": "bf16", "gate_up": "bf16"}, dict.fromkeys(mixed, "bf16")]
    plan = restrict_plan(plan_of(architecture), chosen)
    made, _, decoder = make(architecture, weights, plan, trusted=True, form="heads")
    assert error(run(decoder), plain(architecture, weights)) < 0.1
    assert [layer.qkv for layer in made.plan.layers] == ["fp8", "fp8", "bf16"]
    assert not any(layer.exact for layer in made.plan.layers)


@pytest.mark.parametrize("kind", KINDS)
def test_restored_weights_are_the_rotated_ones(kind: str) -> None:
    architecture = KINDS[kind]
    made, prepared, _ = make(architecture, random_weights(architecture), plan_of(architecture), trusted=False)
    restored = restore_weights(prepared, architecture)
    assert set(restored) == set(made.weights)
    for name, weight in made.weights.items():
        assert error(restored[name].float(), weight.float()) <= 0.02
