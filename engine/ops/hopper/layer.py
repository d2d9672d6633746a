"""A decoder layer in five launches, the way a model's eager definition calls the ops (and torch.export sees them).

Contract: the residual stream travels as (x bf16[T, H], x8 or empty, partials); all of them come from `rows.embed`, `rows.rows` or the
layer before. Nothing is written in place, so buffers are the memory planner's business.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.hopper.attention import attention
from engine.ops.hopper.gate_up import gate_up
from engine.ops.hopper.qkv import qkv
from engine.ops.hopper.residual import residual
from engine.ops.hopper.supports import LayerShape
from engine.ops.hopper.weights import LayerWeights

Stream = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """What every layer of a forward pass shares: positions int64[T], the work list of hopper_plan, rope tables bf16[P, D / 2]."""

    positions: Tensor
    items: Tensor
    offsets: Tensor
    cosines: Tensor
    sines: Tensor


def run_layer(
    library: str,
    shape: LayerShape,
    weights: LayerWeights,
    stream: Stream,
    batch: Batch,
    *,
    next_operand: torch.dtype,
    last: Tensor | None = None,
    max_sms: int = 0,
) -> Stream:
    """next_operand: element type of the next layer's qkv. last: int64[S], in the last layer the rows that go on after the attention."""
    x, x8, partials = stream
    head_eps = shape.eps if shape.head_norm else -1.0
    heads = (shape.num_q, shape.num_kv)
    rope = (batch.cosines, batch.sines, batch.positions)
    fused = qkv(
        library, _operand(x, x8, weights.qkv), partials, weights.qkv, weights.qkv_scales, weights.head_weight, weights.bias,
        *rope, *heads, shape.eps, head_eps, max_sms,
    )  # fmt: skip
    a = attention(
        library, fused, batch.items, batch.offsets, weights.attention_scales, *heads, weights.o.dtype
    )
    if last is not None:
        a, x = a[last], x[last]
    x, x8, partials = residual(library, a, weights.o, weights.o_scales, x, weights.gate_up.dtype, max_sms)
    operand = _operand(x, x8, weights.gate_up)
    h = gate_up(
        library,
        operand,
        partials,
        weights.gate_up,
        weights.gate_up_scales,
        shape.eps,
        weights.down.dtype,
        max_sms,
    )
    y, y8, y_partials = residual(library, h, weights.down, weights.down_scales, x, next_operand, max_sms)
    return y, y8, y_partials


def _operand(x: Tensor, x8: Tensor, w: Tensor) -> Tensor:
    return x if w.dtype == torch.bfloat16 else x8
