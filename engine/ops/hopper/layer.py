"""Decoder layers through the fused ops, the way a model's eager definition calls them (and torch.export sees
them).

Contract: the residual stream travels as (x bf16[T, H], x8 or empty, partials), from `rows.embed`, `rows.rows`
or the layer before. Nothing is written in place, so buffers are the memory planner's business. `run_layers`
launches attention -> chain for every layer that can be chained (see chain.py), else attention -> residual ->
gate_up -> residual -> qkv.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.ops.hopper.attention import attention
from engine.ops.hopper.chain import chain
from engine.ops.hopper.gate_up import gate_up
from engine.ops.hopper.qkv import qkv
from engine.ops.hopper.residual import residual
from engine.ops.hopper.supports import LayerShape
from engine.ops.hopper.weights import LayerWeights

Stream = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """What every layer of a forward pass shares: positions int64[T], hopper_plan's work list,
    hopper_scratch's rows (one a layer, or None: no chains), rope tables bf16[P, D / 2]. max_sms:
    multiprocessors to use, 0 all.
    """

    positions: Tensor
    items: Tensor
    offsets: Tensor
    cosines: Tensor
    sines: Tensor
    scratch: Tensor | None = None
    max_sms: int = 0


def project(library: str, shape: LayerShape, weights: LayerWeights, stream: Stream, batch: Batch) -> Tensor:
    """q, k and v of a layer, bf16[T, N]."""
    x, x8, partials = stream
    out: Tensor = qkv(
        library, _operand(x, x8, weights.qkv), partials, weights.qkv, weights.qkv_scales, weights.head_weight,
        weights.bias, batch.cosines, batch.sines, batch.positions, *_heads(shape), batch.max_sms,
    )  # fmt: skip
    return out


def attend(library: str, shape: LayerShape, weights: LayerWeights, fused: Tensor, batch: Batch) -> Tensor:
    """The attention's output [T, num_q D], in o's element type."""
    scales, output = weights.attention_scales, weights.o.dtype
    out: Tensor = attention(
        library, fused, batch.items, batch.offsets, scales, shape.num_q, shape.num_kv, output
    )
    return out


def finish(
    library: str,
    shape: LayerShape,
    weights: LayerWeights,
    a: Tensor,
    x: Tensor,
    next_operand: torch.dtype,
    max_sms: int = 0,
) -> Stream:
    """o, gate_up, down of the rows given (all, or in the last layer the last token of each sample)."""
    x, x8, partials = residual(library, a, weights.o, weights.o_scales, x, weights.gate_up.dtype, max_sms)
    operand, output = _operand(x, x8, weights.gate_up), weights.down.dtype
    h = gate_up(
        library, operand, partials, weights.gate_up, weights.gate_up_scales, shape.eps, output, max_sms
    )
    y, y8, y_partials = residual(library, h, weights.down, weights.down_scales, x, next_operand, max_sms)
    return y, y8, y_partials


def chainable(weights: LayerWeights, following: LayerWeights) -> bool:
    """Whether this layer's o, gate_up, down and the next one's qkv share an element type."""
    return len({w.dtype for w in (weights.o, weights.gate_up, weights.down, following.qkv)}) == 1


def run_layers(
    library: str,
    shape: LayerShape,
    layers: Sequence[LayerWeights],
    stream: Stream,
    batch: Batch,
    *,
    next_operand: torch.dtype = torch.bfloat16,
    last: Tensor | None = None,
) -> Stream:
    """Equal-shaped layers in a row. next_operand: element type of what reads the result. last: int64[S], the
    rows that go on after the last layer's attention.
    """
    x = stream[0]
    fused = project(library, shape, layers[0], stream, batch)
    for index, (weights, following) in enumerate(pairwise(layers)):
        a = attend(library, shape, weights, fused, batch)
        if batch.scratch is not None and chainable(weights, following):
            x, fused = _chain(library, shape, (weights, following), (a, x), batch, index)
        else:
            stream = finish(library, shape, weights, a, x, following.qkv.dtype, batch.max_sms)
            x, fused = stream[0], project(library, shape, following, stream, batch)
    a = attend(library, shape, layers[-1], fused, batch)
    if last is not None:
        a, x = _take(a, last), x[last]
    return finish(library, shape, layers[-1], a, x, next_operand, batch.max_sms)


def _chain(
    library: str,
    shape: LayerShape,
    layers: tuple[LayerWeights, LayerWeights],
    rows: tuple[Tensor, Tensor],
    batch: Batch,
    index: int,
) -> tuple[Tensor, Tensor]:
    assert batch.scratch is not None
    w, following = layers
    x, fused = chain(
        library, *rows, w.o, w.o_scales, w.gate_up, w.gate_up_scales, w.down, w.down_scales,
        following.qkv, following.qkv_scales, following.head_weight, following.bias,
        batch.cosines, batch.sines, batch.positions, batch.scratch, index, *_heads(shape), batch.max_sms,
    )  # fmt: skip
    return x, fused


def _take(a: Tensor, rows: Tensor) -> Tensor:
    """Through bytes where they are 8 bits: indexing does not know those floats everywhere."""
    return a[rows] if a.dtype == torch.bfloat16 else a.view(torch.uint8)[rows].view(a.dtype)


def _heads(shape: LayerShape) -> tuple[int, int, float, float]:
    return shape.num_q, shape.num_kv, shape.eps, shape.eps if shape.head_norm else -1.0


def _operand(x: Tensor, x8: Tensor, w: Tensor) -> Tensor:
    return x if w.dtype == torch.bfloat16 else x8
