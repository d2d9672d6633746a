"""Plain torch oracles of the Triton operations, and their CPU kernels; signatures are the launchers'.

float32 inside, one rounding at the end. What they say is what a kernel must compute; speed is no concern.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.ops.portable.integers import GROUP_ROWS
from engine.ops.portable.quantised import (
    dequantise,
    quantise_blocks,
    quantise_heads,
    quantise_per_token,
    quantise_rows_int8,
    quantise_static,
)
from engine.quant.integers import multiply


def _emit(value: Tensor, dtype: torch.dtype, scale: Tensor | None, quantise: str) -> tuple[Tensor, Tensor]:
    """float32 value -> what a kernel stores, and the scales that it makes with it."""
    if quantise == "token":
        return quantise_per_token(value)
    if quantise == "blocks":
        return quantise_blocks(value)
    none = torch.empty((0, 1), dtype=torch.float32, device=value.device)
    if scale is None:
        return value.to(dtype), none
    return (quantise_static if quantise == "static" else quantise_heads)(value, scale), none


def add_rms_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, scale: Tensor | None, eps: float, quantise: str,
    take: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows = x if take is None else x[take]
    value = rows.float() if delta is None else rows.float() + delta.float()
    total = x.new_empty((0, x.shape[1])) if delta is None and take is None else value.to(x.dtype)
    if quantise == "rows":
        return (total, *quantise_rows_int8(value, eps))
    normed = value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (total, *_emit(normed, x.dtype, scale, quantise))


def silu_mul(gate_up: Tensor, scale: Tensor | None, quantise: str) -> tuple[Tensor, Tensor]:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return _emit(F.silu(gate) * up, gate_up.dtype, scale, quantise)


def head_norm_rope(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor,
    q_weight: Tensor | None, k_weight: Tensor | None, heads: int, kv_heads: int, eps: float, q_scale: float,
) -> Tensor:  # fmt: skip
    head_dim = 2 * cos.shape[1]
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]

    def prepare(x: Tensor, weight: Tensor | None) -> Tensor:
        wide = x.float().unflatten(-1, (-1, head_dim))
        if weight is not None:
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
        first, second = wide.chunk(2, dim=-1)
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1).flatten(1)

    q, k = qkv[:, : (heads + kv_heads) * head_dim].split([heads * head_dim, kv_heads * head_dim], dim=-1)
    return torch.cat((prepare(q, q_weight) * q_scale, prepare(k, k_weight)), dim=-1).to(qkv.dtype)


def attention_tiles(
    cu_seqlens: Tensor, positions: Tensor, tokens: int, max_samples: int, max_seqlen: int
) -> Tensor:
    borders = cu_seqlens.tolist()
    rows = [
        (first, stop - first, at, segment)
        for segment, (first, stop) in enumerate(pairwise(borders))
        for at in range(0, stop - first, tokens)
    ]
    rows.sort(key=lambda row: -row[2])  # stable: segments stay in order
    places = positions.shape[0] // tokens + cu_seqlens.shape[0] - 1
    tiles = torch.zeros((places, 4), dtype=torch.int32)
    if rows:
        tiles[: len(rows)] = torch.tensor(rows, dtype=torch.int32)
    return tiles.to(cu_seqlens.device)


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, cu_seqlens: Tensor, scale: Tensor | None,
    prefixes: Tensor | None = None, constant_k: Tensor | None = None, constant_v: Tensor | None = None,
    quantise: str = "static",
) -> Tensor:  # fmt: skip
    """Softmax in base 2 over each segment's prefixes and earlier tokens; rows of no segment are zero here."""
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    borders = list(pairwise(cu_seqlens.tolist()))
    before = [(-1, 0)] * len(borders)
    if prefixes is not None and len(prefixes) == len(borders):  # else none: as ops.packed_attention says
        before = prefixes.tolist()
    for (start, stop), (parent, count) in zip(borders, before, strict=True):
        rows = slice(start, stop)
        seen = slice(*borders[parent]) if parent >= 0 else slice(0, 0)
        keys, values = (
            torch.cat((x[:0] if constant is None else constant[:count], x[seen], x[rows]))
            .float()
            .repeat_interleave(group, dim=1)
            for x, constant in ((k, constant_k), (v, constant_v))
        )
        scores = torch.einsum("thd,shd->hts", q[rows].float(), keys) * 0.6931471805599453  # ln 2
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(
            1 + len(keys) - (stop - start)
        )
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hts,shd->thd", weights, values)
    return _emit(out.flatten(1), q.dtype, scale, "none" if scale is None else quantise)[0]


def linear_e4m3(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """x e4m3[T, K], weight e4m3[N, K]; the products are exact in float32, their sum nearly so."""
    out = F.linear(dequantise(x, x_scale), weight.float()) * weight_scale
    return (out if bias is None else out + bias.float()).bfloat16()


def linear_int8(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None,
    residual: Tensor | None, blocks: bool,
) -> Tensor:  # fmt: skip
    """x int8[T, K], weight int8[N, K]: sums are exact inside a scale."""
    out = _multiply_int8(x, x_scale.T if blocks and x_scale is not None else x_scale, weight, weight_scale)
    out = out if bias is None else out + bias.float()
    return (out if residual is None else out + residual.float()).bfloat16()


def _multiply_int8(x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """x_scale[T, blocks]."""
    of_x = torch.ones(1, 1, device=x.device) if x_scale is None else x_scale
    of_rows = weight_scale.repeat_interleave(GROUP_ROWS)[: weight.shape[0]]
    return multiply(x, of_x, weight, of_rows)


def gate_up(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, scale: Tensor | None,
    blocks: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """SwiGLU with its projection: weight[2I, K], gates first; nothing is rounded before the product."""
    if x.dtype == torch.int8:
        assert weight_scale is not None
        both = _multiply_int8(x, x_scale, weight, weight_scale)
    else:
        both = F.linear(dequantise(x, x_scale), dequantise(weight, weight_scale))
    gate, up = both.chunk(2, dim=-1)
    dtype = x.dtype if x_scale is None else torch.bfloat16
    mode = "blocks" if blocks else "none" if scale is None else "static"
    return _emit(F.silu(gate) * up, dtype, scale, mode)
