"""int8 layers made of engine.quant's matrices compute what the plain decoder does, through the oracles."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.build import BuildSpec
from engine.build.cuda_package import int8_scheme
from engine.build.integers import round_decoder
from engine.models.architecture import Architecture
from engine.models.cuda_decoder import CudaDecoder
from engine.models.cuda_weights import UNROTATE, prepare_weights
from engine.models.decoder import PackedDecoder
from engine.models.hopper_layers import HopperLayer
from engine.models.plan import HopperKernels, Plan, choose_plan, layer_shape, restrict_plan
from engine.ops.hopper.layer import Batch, run_layers
from engine.ops.hopper.plan import plan
from engine.ops.hopper.rows import rows
from engine.packed import BatchBounds, pack
from engine.quant.emulation import EmulatedDecoder
from engine.quant.preparation import prepare
from engine.quant.schemes import Form
from engine.quant.texts import Text
from random_decoders import make_architecture, random_weights

BOUNDS = BatchBounds(8, 256, 96)
SAMPLES = [[5, 9, 2], [7] * 40 + list(range(30)), [1], list(range(30))]
ALL = dict.fromkeys(("qkv", "output", "gate_up", "down"), "int8")


KINDS = {
    "norm": make_architecture(intermediate_size=256, qk_norm=True),
    "bias": make_architecture(intermediate_size=256, qkv_bias=True, num_heads=7, num_kv_heads=1),
}


def plan_of(architecture: Architecture) -> Plan:
    return choose_plan(architecture, "int8", arch=90, static=True, kernels=HopperKernels("of no use here"))


def run(
    architecture: Architecture, weights: dict[str, Tensor], plan: Plan, trusted: bool, form: Form = "stream"
) -> tuple[Any, Tensor]:
    texts = [Text(tuple(sample)) for sample in SAMPLES]
    made = round_decoder(architecture, weights, plan, texts, trusted=trusted, say=lambda _: None, form=form)
    prepared = prepare_weights(made.weights, architecture, made.plan, max_seqlen=96, rounded=made.layers)
    prepared |= {name: prepared[name].bfloat16() for name in ("embed_tokens.weight", "norm.weight")}
    decoder = CudaDecoder.from_weights(architecture, prepared | {UNROTATE: made.unrotate}, made.plan, BOUNDS)
    packed = pack(SAMPLES)
    with torch.inference_mode():
        out = decoder(packed.input_ids, packed.positions, packed.cu_seqlens)
    return made, out[: packed.num_samples].float()


def reference(architecture: Architecture, weights: dict[str, Tensor]) -> Tensor:
    packed = pack(SAMPLES)
    with torch.inference_mode():
        decoder = PackedDecoder.from_weights(architecture, weights, 96)
        return decoder(packed.input_ids, packed.positions, packed.cu_seqlens)[: packed.num_samples]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_near_the_plain_decoder(kind: str, trusted: bool) -> None:
    architecture = KINDS[kind]
    weights = random_weights(architecture)
    made, out = run(architecture, weights, plan_of(architecture), trusted)
    want = reference(architecture, weights)
    assert float((out - want).norm() / want.norm()) < 0.06  # fp8 is at 0.1
    assert made.plan.layers[0].exact[:1] == ("qkv",)  # nothing came before
    assert Plan.from_manifest(made.plan.to_manifest()) == made.plan


def test_a_layer_loses_what_the_emulation_says() -> None:
    """The same layers of the same stream: what int8 does to their result, emulated and by the oracles."""
    architecture = KINDS["norm"]
    weights, packed = random_weights(architecture), pack(SAMPLES)
    texts = [Text(tuple(sample)) for sample in SAMPLES]
    made = round_decoder(
        architecture, weights, plan_of(architecture), texts, trusted=False, say=lambda _: None
    )
    prepared = prepare_weights(made.weights, architecture, made.plan, max_seqlen=96, rounded=made.layers)
    prepared |= {name: prepared[name].bfloat16() for name in ("embed_tokens.weight", "norm.weight")}
    ready = prepared | {UNROTATE: made.unrotate}
    layers = cast(list[HopperLayer], CudaDecoder.from_weights(architecture, ready, made.plan, BOUNDS).layers)
    decoder = EmulatedDecoder(architecture, made.weights, made.unrotate, torch.bfloat16)
    matrices = prepare(decoder, packed, None, ["int8"], "stream", compensated=False)["int8"]
    shape, tables = layer_shape(architecture), (prepared["hopper_cos"], prepared["hopper_sin"])
    items, offsets = plan("", packed.cu_seqlens, packed.positions, shape.num_q, shape.num_kv, 264)
    batch = Batch(packed.positions, items, offsets, *tables)
    stream, emulated = decoder.begin(packed)
    for index in range(architecture.num_layers):
        want = decoder.step(index, stream, emulated, {})
        theirs = decoder.step(index, stream, emulated, matrices)
        x = stream.x.bfloat16()
        rows_of_x = (x, *rows("", x, torch.ones(2), torch.int8))
        y = run_layers("", shape, [layers[index].weights()], rows_of_x, batch)[0].float()
        lost, expected = ((each - want.x).norm() for each in (y, theirs.x))
        assert float(lost / expected) == pytest.approx(1.0, abs=0.2)
        assert float(expected) < 0.1 * float((want.x - stream.x).norm())
        stream = want


@pytest.mark.parametrize("stay", ["qkv", "output", "gate_up", "down"])
def test_matrices_may_stay_bf16(stay: str) -> None:
    architecture = KINDS["norm"]
    weights = random_weights(architecture)
    plan = restrict_plan(plan_of(architecture), [ALL, ALL | {stay: "bf16"}, ALL])
    made, out = run(architecture, weights, plan, trusted=True)
    want = reference(architecture, weights)
    assert float((out - want).norm() / want.norm()) < 0.06
    assert getattr(made.plan.layers[1], stay) == "bf16"
    assert stay not in made.plan.layers[1].exact


def test_int8_beside_e4m3_in_a_stream_of_its_own_channels() -> None:
    """What a choice by accuracy may leave: int8 of what does not read the stream, e4m3 of what does."""
    architecture = KINDS["norm"]
    weights = random_weights(architecture)
    mixed = {"qkv": "e4m3_static", "output": "int8", "gate_up": "e4m3_static", "down": "int8"}
    chosen = [mixed, mixed | {"output": "bf16", "gate_up": "bf16"}, mixed | {"qkv": "bf16", "down": "bf16"}]
    plan = restrict_plan(plan_of(architecture), chosen)
    made, out = run(architecture, weights, plan, trusted=True, form="heads")
    want = reference(architecture, weights)
    assert float((out - want).norm() / want.norm()) < 0.1
    assert [layer.qkv for layer in made.plan.layers] == ["fp8", "fp8", "bf16"]
    assert not any(layer.exact for layer in made.plan.layers)


def test_rows_that_grow_evenly_are_predicted() -> None:
    """A stream much larger than what a layer adds: its length before is its length after."""
    architecture = KINDS["norm"]
    weights = random_weights(architecture)
    weights["embed_tokens.weight"] = weights["embed_tokens.weight"] * 40
    made, _ = run(architecture, weights, plan_of(architecture), trusted=True)
    assert [layer.exact for layer in made.plan.layers] == [("qkv",), (), ()]


def test_a_decoder_that_no_rotation_passes_is_refused() -> None:
    architecture = KINDS["norm"]
    weights = random_weights(architecture) | {"layers.0.attention_norm.bias": torch.zeros(160)}
    with pytest.raises(ValueError, match=r"layers\.0\.attention_norm\.bias"):
        run(dataclasses.replace(architecture), weights, plan_of(architecture), trusted=False)


def test_int8_has_exact_scales_where_nothing_compiles_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = BuildSpec(tmp_path, tmp_path / "out", "tiny", bounds=BOUNDS)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("engine.ops.hopper.compiler.sysconfig.get_paths", lambda: {"purelib": "/nowhere"})
    monkeypatch.delenv("BOUNDGEN_HOPPER_LIBRARY", raising=False)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    assert int8_scheme(spec, KINDS["norm"]) == "int8"
    assert int8_scheme(dataclasses.replace(spec, kernels="portable"), KINDS["norm"]) == "int8_exact"
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    assert int8_scheme(spec, KINDS["norm"]) == "int8_exact"
    monkeypatch.setenv("NVCC", str(nvcc))
    search = dataclasses.replace(spec, beam=BeamBounds(4, 2, 1))  # goes the portable path
    assert int8_scheme(search, KINDS["norm"]) == "int8_exact"
    narrow = dataclasses.replace(KINDS["norm"], intermediate_size=200)  # attention alone could be in int8
    assert int8_scheme(search, narrow) is None
