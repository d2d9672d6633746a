"""Turns a decoder layer's matrices into what the kernels read: norm weights folded in, 8 bits, stored order.
Done once, at build.

    stored[i, j] = round(w[rows[i], columns[j]] * fold[columns[j]] / scale)      scale = max |.| / 448 (e4m3:
    one a matrix), / 127 (int8: one for each 128 rows); 1 in bf16

e4m3 keeps its relative precision over 2^15, so a scale a channel gains nothing (measured). Matrices that were
rounded with compensation come as RoundedMatrix. Runs on any device, in float32. An artifact keeps the tensors
of LayerWeights as they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.hopper import layout
from engine.ops.hopper.products import GROUP_ROWS, scales_of_rows
from engine.ops.hopper.quantise import HADAMARD, LARGEST, MIN_SCALE, quantise
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
    """What activations are multiplied with before they are quantised (1 where the reader is in bf16).

    In int8, that of the residual stream is of x over its root mean square one step before, None: `rows` finds
    the exact scale of each row; of the attention's output one for each q head, float32[num_q]; of silu(gate)
    up none.
    """

    qkv: float | None = 1.0  # the residual stream before qkv
    o: float | Tensor = 1.0  # the attention's output
    gate_up: float | None = 1.0  # the residual stream before gate_up
    down: float = 1.0  # silu(gate) up


@dataclass(frozen=True)
class RoundedMatrix:
    """A rounded 8-bit matrix in logical order: values int8[N, K], scales float32[ceil(N / 128)]; or values
    e4m3[N, K], scales float32[1].

    Everything is folded in: norms; into an int8 o what undoes the heads' factors; into an int8 down the
    Hadamard transform of its inputs.
    """

    values: Tensor
    scales: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Tensors of one layer, on the device they run on. scales: see products.py; of the attention [num_q]."""

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
) -> tuple[Tensor, Tensor]:
    """One matrix [N, K] in stored order and its scales float32[groups]: w ~ stored * scale of its row."""
    w = w.float() if fold is None else w.float() * fold.float()
    if element == torch.int8:
        return store_rounded(round_to_nearest(w), rows, columns=columns)
    w = w[rows.to(w.device)]
    w = w if columns is None else w[:, columns.to(w.device)]
    scale = 1.0 if element == torch.bfloat16 else max(w.abs().max().item(), 1e-12) / LARGEST[element]
    return quantise(w / scale, element).contiguous(), torch.full((1,), scale, device=w.device)


def round_to_nearest(w: Tensor) -> RoundedMatrix:
    """float32[N, K] -> int8, a scale for each 128 rows."""
    largest = torch.stack([group.abs().max() for group in torch.split(w, GROUP_ROWS)])
    scales = (largest / LARGEST[torch.int8]).clamp_min(MIN_SCALE)
    of_rows = scales.repeat_interleave(GROUP_ROWS)[: w.shape[0], None]
    return RoundedMatrix(quantise(w / of_rows, torch.int8), scales)


def store_rounded(
    matrix: RoundedMatrix, rows: Tensor, *, columns: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same of a rounded matrix. Groups keep their rows, or two of them alternate every 64 (gate_up)."""
    w = matrix.values.view(torch.uint8)[rows.to(matrix.values.device)]  # not every device indexes e4m3
    w = (w if columns is None else w[:, columns.to(w.device)]).contiguous().view(matrix.values.dtype)
    if w.dtype != torch.int8:
        return w, matrix.scales
    first = rows[::GROUP_ROWS] // GROUP_ROWS
    if int(rows[1]) >= GROUP_ROWS:  # gate and up side by side: of 256 stored rows 128 are of either
        first = torch.stack([rows[::256], rows[1::256]], 1).flatten() // GROUP_ROWS
    return w, matrix.scales[first.to(matrix.scales.device)].contiguous()


def mix(w: Tensor) -> Tensor:
    """down's columns through the Hadamard transform that its int8 inputs went through."""
    matrix = torch.ones(1, 1, device=w.device)
    while matrix.shape[0] < HADAMARD:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    mixed: Tensor = w.float().reshape(len(w), -1, HADAMARD) @ (matrix / HADAMARD**0.5)
    return mixed.flatten(1)


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
    next_factor: float | None,
    rounded: Mapping[str, RoundedMatrix] | None = None,
) -> LayerWeights:
    """precision: element type by matrix. next_factor: `Factors.qkv` of the layer after this one (1 after the
    last). rounded: 8-bit matrices; without one, the source's is rounded to nearest.
    """
    rounded = rounded or {}
    qkv_order = layout.qkv_rows(shape.num_q + 2 * shape.num_kv, shape.head_dim)
    lin_order = layout.residual_rows(shape.hidden)
    attended = layout.attention_columns(shape.num_q, shape.head_dim, precision["o"])
    mixed, device = precision["down"] == torch.int8, source.qkv.device
    gate_up_order = _gate_up_order(shape, precision["down"])
    heads = torch.as_tensor(factors.o, dtype=torch.float32, device=device).expand(shape.num_q).contiguous()

    unscaled = (1 / heads).repeat_interleave(shape.head_dim) if precision["o"] == torch.int8 else None
    down_columns = layout.hadamard_columns(shape.intermediate) if mixed else None

    def make(
        name: str, w: Tensor, rows: Tensor, columns: Tensor | None = None, fold: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if name in rounded:
            return store_rounded(rounded[name], rows, columns=columns)
        return store(w, rows, precision[name], columns=columns, fold=fold)

    qkv, qkv_scales = make("qkv", source.qkv, qkv_order, fold=source.input_norm)
    o, o_scales = make("o", source.o, lin_order, attended, unscaled)
    gate_up, gate_up_scales = make("gate_up", source.gate_up, gate_up_order, fold=source.post_norm)
    down, down_scales = make("down", mix(source.down) if mixed else source.down, lin_order, down_columns)

    def finish(name: str, scales: Tensor, before: float | Tensor | None, after: float | None) -> Tensor:
        # in int8, activations bring their own scales
        scales = scales if precision[name] == torch.int8 or before is None else scales / before
        return scales if after is None else torch.cat([scales, torch.tensor([after], device=device)])

    bias = None if source.bias is None else source.bias.float()[qkv_order.to(device)].contiguous()
    return LayerWeights(
        qkv=qkv,
        qkv_scales=finish("qkv", qkv_scales, factors.qkv, 1.0),
        head_weight=head_weight(shape, source),
        bias=bias,
        attention_scales=heads,
        o=o,
        o_scales=finish("o", o_scales, heads[0], factors.gate_up),
        gate_up=gate_up,
        gate_up_scales=finish("gate_up", gate_up_scales, factors.gate_up, factors.down),
        down=down,
        down_scales=finish("down", down_scales, factors.down, next_factor),
    )


def _gate_up_order(shape: LayerShape, down: torch.dtype) -> Tensor:
    if down == torch.int8:
        return layout.hadamard_rows(shape.intermediate)
    return layout.gate_up_rows(shape.intermediate, down)


def restore_layer(shape: LayerShape, weights: LayerWeights, qkv_factor: Tensor) -> LayerSource:
    """The inverse of prepare_layer, but for what rounding lost: what the stored values stand for, in logical
    order. Norms stay folded into the matrices behind them: theirs are ones. qkv_factor: `Factors.qkv`.
    """
    mixed, heads = weights.down.dtype == torch.int8, weights.attention_scales

    def take(name: str, rows: Tensor, before: Tensor, columns: Tensor | None = None) -> Tensor:
        w, scales = getattr(weights, name), getattr(weights, f"{name}_scales")
        of_rows = scales_of_rows(scales, w, paired=name == "gate_up")
        wide: Tensor = w.float() * (of_rows if w.dtype == torch.int8 else of_rows * before)[:, None]
        wide = wide[layout.inverse(rows).to(w.device)]
        return wide if columns is None else wide[:, layout.inverse(columns).to(w.device)]

    qkv_order = layout.qkv_rows(shape.num_q + 2 * shape.num_kv, shape.head_dim)
    lin_order = layout.residual_rows(shape.hidden)
    gate_up_order = _gate_up_order(shape, weights.down.dtype)
    attended = layout.attention_columns(shape.num_q, shape.head_dim, weights.o.dtype)
    o = take("o", lin_order, heads[0], attended)
    down = take(
        "down", lin_order, weights.gate_up_scales[-1],
        layout.hadamard_columns(shape.intermediate) if mixed else None,
    )  # fmt: skip
    ones = torch.ones(shape.hidden, device=o.device)
    to_logits = math.log2(math.e) / math.sqrt(shape.head_dim)
    bias = weights.bias
    return LayerSource(
        qkv=take("qkv", qkv_order, qkv_factor),
        o=o * heads.repeat_interleave(shape.head_dim) if weights.o.dtype == torch.int8 else o,
        gate_up=take("gate_up", gate_up_order, weights.o_scales[-1]),
        down=mix(down) if mixed else down,
        input_norm=ones,
        post_norm=ones,
        bias=None if bias is None else bias[layout.inverse(qkv_order).to(bias.device)],
        q_norm=weights.head_weight[0] / to_logits if shape.head_norm else None,
        k_norm=weights.head_weight[1] if shape.head_norm else None,
    )
