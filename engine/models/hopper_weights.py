"""A decoder's tensors made ready for the hopper path: norms folded in, the kernels' order, static factors.

Done once, at build; every lane shares the result. Layers in int8 bring their matrices, rounded elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.models.architecture import Architecture
from engine.models.hopper_layers import COS, INPUT_SCALES, SIN, restore_vectors
from engine.models.plan import LayerPlan, Plan, layer_shape
from engine.models.small_vectors import store, vector
from engine.ops.hopper.weights import (
    Factors,
    LayerSource,
    LayerWeights,
    RoundedMatrix,
    prepare_layer,
    restore_layer,
)

# matrix -> the module of the eager decoder whose input it quantises; the raw residual stream is the norm's
CALIBRATED = {"qkv": "attention_norm", "o": "output", "gate_up": "mlp_norm", "down": "down"}


@dataclass(frozen=True)
class Rounded:
    """A layer's 8-bit matrices by the kernels' names, and how the inputs of all its matrices are scaled."""

    matrices: Mapping[str, RoundedMatrix]
    factors: Factors


def hopper_tensors(
    weights: Mapping[str, Tensor],
    architecture: Architecture,
    plan: Plan,
    input_scales: Mapping[str, float] | None,
    rounded: Mapping[int, Rounded] | None = None,
) -> dict[str, Tensor]:
    """Tensors of every hopper layer of the plan, by the decoder's names, on the device of `weights`.

    `rounded`: layers with int8 matrices. ConfigError names a calibrated scale that is missing.
    """
    rounded = rounded or {}
    factors = [
        Factors()
        if layer.path != "hopper"
        else rounded[index].factors
        if index in rounded
        else _factors(index, layer, input_scales)
        for index, layer in enumerate(plan.layers)
    ]
    following = [factor.qkv for factor in factors[1:]] + [1.0]
    prepared: dict[str, Tensor] = {}
    for index, layer in enumerate(plan.layers):
        if layer.path != "hopper":
            continue
        integers = rounded[index].matrices if index in rounded else {}
        own = _prepare(weights, architecture, layer, index, (factors[index], following[index]), integers)
        prepared |= {f"layers.{index}.{name}": tensor for name, tensor in own.items()}
    return prepared


def _prepare(
    weights: Mapping[str, Tensor],
    a: Architecture,
    layer: LayerPlan,
    index: int,
    factors: tuple[Factors, float | None],
    integers: Mapping[str, RoundedMatrix],
) -> dict[str, Tensor]:
    def get(name: str) -> Tensor:
        return weights[f"layers.{index}.{name}"].float()

    source = LayerSource(
        qkv=get("attention.qkv.weight"),
        o=get("output.weight"),
        gate_up=get("gate_up.weight"),
        down=get("down.weight"),
        input_norm=get("attention_norm.weight"),
        post_norm=get("mlp_norm.weight"),
        bias=get("attention.qkv.bias") if a.qkv_bias else None,
        q_norm=get("attention.q_norm.weight") if a.qk_norm else None,
        k_norm=get("attention.k_norm.weight") if a.qk_norm else None,
    )
    made = prepare_layer(layer_shape(a), source, layer.elements(), *factors, integers)
    tensors = {field.name: getattr(made, field.name) for field in fields(LayerWeights)}
    tensors[INPUT_SCALES] = torch.tensor(
        [factors[0].qkv or 1.0, 1.0], dtype=torch.float32, device=source.qkv.device
    )
    return {name: store(tensor) for name, tensor in tensors.items() if tensor is not None}


def _factors(index: int, layer: LayerPlan, input_scales: Mapping[str, float] | None) -> Factors:
    chosen = {}
    for matrix, element in layer.elements().items():
        if element == torch.bfloat16:
            continue
        name = f"layers.{index}.{CALIBRATED[matrix]}"
        scale = (input_scales or {}).get(name)
        if scale is None or scale <= 0:
            raise ConfigError(f"input_scales.{name}", scale, "a static plan needs a positive scale here")
        chosen[matrix] = 1.0 / scale
    return Factors(**chosen)


def is_hopper(prepared: Mapping[str, Tensor], index: int) -> bool:
    """Whether layer `index` of a CUDA decoder's tensors is a hopper one."""
    return f"layers.{index}.{INPUT_SCALES}" in prepared


def restore_hopper(prepared: Mapping[str, Tensor], a: Architecture, index: int) -> dict[str, Tensor]:
    """A hopper layer's tensors by the eager decoder's names, bf16: what its stored values stand for. Norm
    weights are ones; the matrices behind them hold them."""
    own: dict[str, Any] = {
        field.name: prepared.get(f"layers.{index}.{field.name}") for field in fields(LayerWeights)
    }
    factor = vector(prepared[f"layers.{index}.{INPUT_SCALES}"])[0]
    source = restore_layer(layer_shape(a), restore_vectors(own), factor)
    restored = {
        "attention.qkv.weight": source.qkv, "attention.qkv.bias": source.bias, "output.weight": source.o,
        "gate_up.weight": source.gate_up, "down.weight": source.down,
        "attention_norm.weight": source.input_norm, "mlp_norm.weight": source.post_norm,
        "attention.q_norm.weight": source.q_norm, "attention.k_norm.weight": source.k_norm,
    }  # fmt: skip
    return {f"layers.{index}.{name}": x.bfloat16() for name, x in restored.items() if x is not None}


def hopper_tables(inv_freq: Tensor, scaling: float, max_seqlen: int) -> dict[str, Tensor]:
    """bf16[max_seqlen, head_dim / 2] each."""
    angle = torch.arange(max_seqlen, device=inv_freq.device).float()[:, None] * inv_freq.float()
    return {COS: (angle.cos() * scaling).bfloat16(), SIN: (angle.sin() * scaling).bfloat16()}
