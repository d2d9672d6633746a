"""Layers on the hopper path, as the packed decoder holds them: tensors that engine.ops.hopper prepared.

Consecutive layers run as one operation, engine.ops.hopper.stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.plan import LayerPlan, layer_shape
from engine.models.small_vectors import stored_shape, vector
from engine.ops.hopper.products import num_groups
from engine.ops.hopper.stack import flatten, stack
from engine.ops.hopper.supports import MATRICES
from engine.ops.hopper.weights import LayerWeights

INPUT_SCALES = "input_scales"
COS, SIN = "hopper_cos", "hopper_sin"  # names of the rotary tables, bf16[positions, head_dim / 2]


class HopperLayer(nn.Module):
    """One layer's tensors, named as in LayerWeights.

    input_scales float32[1, 2]: what x is multiplied with where a run begins with this layer. after: the layer
    behind it in its run, whose qkv says how this one's results are quantised.
    """

    input_scales: Tensor

    def __init__(self, a: Architecture, plan: LayerPlan, after: LayerPlan | None = None) -> None:
        super().__init__()
        elements = plan.elements()
        shapes = layer_shape(a).matrices()
        exact = {"o": "gate_up" in plan.exact, "down": after is not None and "qkv" in after.exact}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.empty(shape, dtype=elements[name]))
            num_scales = num_groups(shape[0], elements[name]) + (0 if exact.get(name) else 1)
            self.register_buffer(_scales(name), torch.empty(stored_shape(num_scales)))
        self.register_buffer("attention_scales", torch.empty(stored_shape(a.num_heads)))
        self.register_buffer("head_weight", torch.empty(2, a.head_dim))
        self.register_buffer("bias", torch.empty(shapes["qkv"][0]) if a.qkv_bias else None)
        self.register_buffer(INPUT_SCALES, torch.empty(stored_shape(2)))

    def weights(self) -> LayerWeights:
        return restore_vectors({field.name: getattr(self, field.name) for field in fields(LayerWeights)})


def restore_vectors(stored: Mapping[str, Tensor | None]) -> LayerWeights:
    """A layer's tensors, out of those that a package's constants are."""
    tensors: dict[str, Any] = dict(stored)
    for name in (*map(_scales, MATRICES), "attention_scales"):
        tensors[name] = vector(tensors[name])
    return LayerWeights(**tensors)


@dataclass(frozen=True)
class HopperBatch:
    """What a run needs of a packed batch, and the library that it calls."""

    library: str
    positions: Tensor  # int64[T]
    cu_seqlens: Tensor  # int32[S+1]
    tables: tuple[Tensor, Tensor]  # rotary cos and sin
    prefixes: Tensor | None = None  # int32[S, 2], and with it
    constant: Tensor | None = None  # bf16[layers of the run, 2, P, Hkv, D], the constant prefix' keys, values


def run_hopper(
    a: Architecture,
    layers: Sequence[HopperLayer],
    batch: HopperBatch,
    source: Tensor,
    *,
    ids: Tensor | None = None,
    last: Tensor | None = None,
) -> Tensor:
    """x bf16[T, hidden_size], or the embedding table of `ids`, through consecutive layers.

    `last`: rows that alone go on after the last attention.
    """
    x: Tensor = stack(
        batch.library, source, ids, vector(layers[0].input_scales), batch.positions, batch.cu_seqlens, last,
        *batch.tables, flatten([layer.weights() for layer in layers]), a.qkv_bias, a.num_heads,
        a.num_kv_heads, a.norm_eps, a.qk_norm, batch.prefixes, batch.constant,
    )  # fmt: skip
    return x


def _scales(matrix: str) -> str:
    return f"{matrix}_scales"
