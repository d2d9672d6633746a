"""Turns a decoder layer's matrices into what the kernels read: norm weights folded in, 8 bits, stored order.
Done once, at build.

    stored[i, j] = round(w[rows[i], columns[j]] * fold[columns[j]] / scale)      scale = max |.| / 448; 1 in
    bf16

One scale a matrix: e4m3 keeps its relative precision over 2^15, so a scale a channel gains nothing
(measured). Runs on any device, in float32. An artifact keeps the tensors of LayerWeights as they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.hopper import layout
from engine.ops.hopper.quantise import LARGEST, quantise
from engine.ops.hopper.supports import LayerShape

HEADROOM = 2.0  # the largest activation of the calibration texts maps to half of the type's range


@dataclass(frozen=True)
class LayerSource:
    """float32, logical order: qkv [N, H] (q over k over v), o [H, num_q D], gate_up [2 I, H] (gate over up),
    down [H, I].
    """

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    input_norm: Tensor  # [H]
    post_norm: Tensor  # [H]
    bias: Tensor | None = None  # [N]
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None  # [D]


@dataclass(frozen=True)
class Factors:
    """What activations are multiplied with before they are quantised (1 where the reader is in bf16)."""

    qkv: float = 1.0  # the residual stream before qkv
    o: float = 1.0  # the attention's output
    gate_up: float = 1.0  # the residual stream before gate_up
    down: float = 1.0  # silu(gate) up


@dataclass(frozen=True)
class LayerWeights:
    """Tensors of one layer, on the device they run on. scales: float32[2], see the ops."""

    qkv: Tensor
    qkv_scales: Tensor
    head_weight: Tensor
    bias: Tensor | None
    attention_scales: Tensor
    o: Tensor
    o_scales: Tensor
    gate_up: Tensor
    gate_up_scales: Tensor
    down: Tensor
    down_scales: Tensor


def factor(largest: float, element: torch.dtype) -> float:
    """The static factor of an activation whose largest magnitude on calibration texts was `largest`."""
    return 1.0 if element == torch.bfloat16 else LARGEST[element] / (HEADROOM * max(largest, 1e-12))


def store(
    w: Tensor,
    rows: Tensor,
    element: torch.dtype,
    *,
    columns: Tensor | None = None,
    fold: Tensor | None = None,
) -> tuple[Tensor, float]:
    """One matrix [N, K] in stored order and its scale: w ~ stored * scale."""
    w = w.float() if fold is None else w.float() * fold.float()
    w = w[rows.to(w.device)]
    w = w if columns is None else w[:, columns.to(w.device)]
    scale = 1.0 if element == torch.bfloat16 else max(w.abs().max().item(), 1e-12) / LARGEST[element]
    return quantise(w / scale, element).contiguous(), scale


def head_weight(shape: LayerShape, source: LayerSource) -> Tensor:
    """[2, D]: head norm weights (ones without), q's with log2(e) / sqrt(D)."""
    ones = torch.ones(shape.head_dim, device=source.qkv.device)
    q = ones if source.q_norm is None else source.q_norm.float()
    k = ones if source.k_norm is None else source.k_norm.float()
    return torch.stack([q * (math.log2(math.e) / math.sqrt(shape.head_dim)), k]).contiguous()


def prepare_layer(
    shape: LayerShape,
    source: LayerSource,
    precision: Mapping[str, torch.dtype],
    factors: Factors,
    next_factor: float,
) -> LayerWeights:
    """precision: element type by matrix. next_factor: `Factors.qkv` of the layer after this one (1 after the
    last).
    """
    heads = shape.num_q + 2 * shape.num_kv
    qkv_order = layout.qkv_rows(heads, shape.head_dim)
    lin_order = layout.residual_rows(shape.hidden)
    attended = layout.attention_columns(shape.num_q, shape.head_dim)
    qkv, qkv_scale = store(source.qkv, qkv_order, precision["qkv"], fold=source.input_norm)
    o, o_scale = store(source.o, lin_order, precision["o"], columns=attended)
    gate_up, gate_up_scale = store(
        source.gate_up, layout.gate_up_rows(shape.intermediate), precision["gate_up"], fold=source.post_norm
    )
    down, down_scale = store(source.down, lin_order, precision["down"])

    def scales(first: float, second: float) -> Tensor:
        return torch.tensor([first, second], dtype=torch.float32, device=qkv.device)

    bias = None if source.bias is None else source.bias.float()[qkv_order.to(qkv.device)].contiguous()
    return LayerWeights(
        qkv=qkv,
        qkv_scales=scales(qkv_scale / factors.qkv, 1.0),
        head_weight=head_weight(shape, source),
        bias=bias,
        attention_scales=scales(factors.o, 1.0),
        o=o,
        o_scales=scales(o_scale / factors.o, factors.gate_up),
        gate_up=gate_up,
        gate_up_scales=scales(gate_up_scale / factors.gate_up, factors.down),
        down=down,
        down_scales=scales(down_scale / factors.down, next_factor),
    )
