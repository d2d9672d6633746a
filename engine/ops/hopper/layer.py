"""Decoder layers through the fused ops, the way a model's eager definition calls them (and torch.export sees
them).

Contract: the residual stream travels as (x bf16[T, H], x8 or empty, partials, row scales of x8 or empty),
from `rows.embed`, `rows.rows` or the layer before. Nothing is written in place, so buffers are the memory
planner's business. `run_layers` launches attention -> chain for every layer that can be chained (see
chain.py), else attention -> residual -> gate_up -> residual -> qkv; in int8 with `rows` before a product that
wants the exact scale of every row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.ops.hopper.attention import attention
from engine.ops.hopper.chain import chain
from engine.ops.hopper.gate_up import gate_up
from engine.ops.hopper.products import has_factor
from engine.ops.hopper.qkv import qkv
from engine.ops.hopper.residual import residual
from engine.ops.hopper.rows import rows
from engine.ops.hopper.supports import LayerShape
from engine.ops.hopper.weights import LayerWeights

Stream = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """What every layer of a forward pass shares: positions int64[T], hopper_plan's work list,
    hopper_scratch's rows (one a layer, or None: no chains), rope tables bf16[P, D / 2]. max_sms:
    multiprocessors to use, 0 all. constant: keys and values of the constant prefix that the work list names,
    bf16[layers, 2, rows, num_kv, D]. chain_integers: chain int8 layers too, which is slower: to compare.
    """

    positions: Tensor
    items: Tensor
    offsets: Tensor
    cosines: Tensor
    sines: Tensor
    scratch: Tensor | None = None
    max_sms: int = 0
    constant: Tensor | None = None
    chain_integers: bool = False


def project(library: str, shape: LayerShape, weights: LayerWeights, stream: Stream, batch: Batch) -> Tensor:
    """q, k and v of a layer, bf16[T, N]."""
    x, x8, partials, row_scales = stream
    out: Tensor = qkv(
        library, _operand(x, x8, weights.qkv), partials, weights.qkv, weights.qkv_scales, weights.head_weight,
        weights.bias, batch.cosines, batch.sines, batch.positions, *_heads(shape), batch.max_sms, row_scales,
    )  # fmt: skip
    return out


def attend(
    library: str, shape: LayerShape, weights: LayerWeights, fused: Tensor, batch: Batch, index: int = 0
) -> Tensor:
    """The attention's output [T, num_q D] of layer `index` of the run, in o's element type."""
    scales, output = weights.attention_scales, weights.o.dtype
    constant = None if batch.constant is None else batch.constant[index]
    out: Tensor = attention(
        library, fused, batch.items, batch.offsets, scales, shape.num_q, shape.num_kv, output, constant
    )
    return out


def finish(
    library: str,
    shape: LayerShape,
    weights: LayerWeights,
    a: Tensor,
    stream: Stream,
    next_operand: torch.dtype,
    max_sms: int = 0,
) -> Stream:
    """o, gate_up, down of the rows given (all, or in the last layer the last token of each sample)."""
    o, down = (weights.o, weights.o_scales), (weights.down, weights.down_scales)
    x, x8, partials, row_scales = middle = _add(
        library, shape, (a, None), o, stream, weights.gate_up.dtype, max_sms
    )
    h, blocks = gate_up(
        library, _operand(x, x8, weights.gate_up), partials, weights.gate_up, weights.gate_up_scales,
        shape.eps, weights.down.dtype, max_sms, row_scales,
    )  # fmt: skip
    scales = blocks if h.dtype == torch.int8 else None
    return _add(library, shape, (h, scales), down, middle, next_operand, max_sms)


def _add(
    library: str,
    shape: LayerShape,
    inputs: tuple[Tensor, Tensor | None],
    matrix: tuple[Tensor, Tensor],
    stream: Stream,
    operand: torch.dtype,
    max_sms: int,
) -> Stream:
    """The stream after a product of inputs (with scales of their blocks) was added to it."""
    (a, block_scales), (w, scales) = inputs, matrix
    x, _, before, _ = stream
    if operand != torch.int8 or has_factor(scales, w):
        y, y8, partials, row_scales = residual(
            library, a, w, scales, x, operand, max_sms, block_scales, before, shape.eps
        )
        return y, y8, partials, row_scales
    y, _, _, _ = residual(library, a, w, scales, x, torch.bfloat16, max_sms, block_scales)
    return y, *rows(library, y, scales, operand)


def chainable(weights: LayerWeights, following: LayerWeights, integers: bool = False) -> bool:
    """Whether this layer's o, gate_up, down and the next one's qkv share an element type, and none of them
    wants exact scales of rows. int8 only if asked for: apart it is 2 to 8% faster on an H200."""
    if weights.o.dtype == torch.int8 and not integers:
        return False
    predicted = has_factor(weights.o_scales, weights.o) and has_factor(weights.down_scales, weights.down)
    return (
        predicted and len({w.dtype for w in (weights.o, weights.gate_up, weights.down, following.qkv)}) == 1
    )


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
    fused = project(library, shape, layers[0], stream, batch)
    for index, (weights, following) in enumerate(pairwise(layers)):
        a = attend(library, shape, weights, fused, batch, index)
        if batch.scratch is not None and chainable(weights, following, batch.chain_integers):
            stream, fused = _chain(library, shape, (weights, following), a, stream, batch, index)
        else:
            stream = finish(library, shape, weights, a, stream, following.qkv.dtype, batch.max_sms)
            fused = project(library, shape, following, stream, batch)
    a = attend(library, shape, layers[-1], fused, batch, len(layers) - 1)
    if last is not None:
        x, x8, partials, row_scales = stream
        a, stream = _take(a, last), (x[last], x8, partials[last], row_scales)
    return finish(library, shape, layers[-1], a, stream, next_operand, batch.max_sms)


def _chain(
    library: str,
    shape: LayerShape,
    layers: tuple[LayerWeights, LayerWeights],
    a: Tensor,
    stream: Stream,
    batch: Batch,
    index: int,
) -> tuple[Stream, Tensor]:
    """The stream (without what the chain alone reads), q, k and v of the next layer."""
    assert batch.scratch is not None
    (w, following), (x, x8, before, row_scales) = layers, stream
    x, fused, partials = chain(
        library, a, x, w.o, w.o_scales, w.gate_up, w.gate_up_scales, w.down, w.down_scales,
        following.qkv, following.qkv_scales, following.head_weight, following.bias,
        batch.cosines, batch.sines, batch.positions, batch.scratch, index, *_heads(shape), batch.max_sms,
        before,
    )  # fmt: skip
    return (x, x8, partials, row_scales), fused


def _take(a: Tensor, rows: Tensor) -> Tensor:
    """Through bytes where they are 8 bits: indexing does not know those floats everywhere."""
    return a[rows] if a.dtype == torch.bfloat16 else a.view(torch.uint8)[rows].view(a.dtype)


def _heads(shape: LayerShape) -> tuple[int, int, float, float]:
    return shape.num_q, shape.num_kv, shape.eps, shape.eps if shape.head_norm else -1.0


def _operand(x: Tensor, x8: Tensor, w: Tensor) -> Tensor:
    return x if w.dtype == torch.bfloat16 else x8
