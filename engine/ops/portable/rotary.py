"""boundgen::head_norm_rope: queries and keys made ready for attention, in one pass over the qkv projection.

    y = x[head]                       or, with head norms,  weight * x[head] / sqrt(mean(x[head]²) + eps)
    out[i]       = y[i] cos - y[i + D/2] sin
    out[i + D/2] = y[i + D/2] cos + y[i] sin          cos, sin of the token's position; queries times q_scale

Values are not touched: attention reads them where the projection wrote them.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.language import jit, next_power_of_2, register, tl


@jit
def rotate_heads(
    source, lane, inside, is_query, position, cos, sin, q_weight, k_weight, num_positions,
    HALF: tl.constexpr, EPS: tl.constexpr, Q_SCALE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Both halves, float32, of the heads that begin at `source`. Positions are clamped into the tables."""
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        mean = (tl.sum(first * first, 1, keep_dims=True) + tl.sum(second * second, 1, keep_dims=True)) / (
            2 * HALF
        )
        factor = tl.rsqrt(mean + EPS)
        first *= factor * tl.where(is_query, tl.load(q_weight + lane), tl.load(k_weight + lane)).to(
            tl.float32
        )
        upper = tl.where(is_query, tl.load(q_weight + HALF + lane), tl.load(k_weight + HALF + lane))
        second *= factor * upper.to(tl.float32)
    position = tl.minimum(tl.maximum(position, 0), num_positions - 1)
    c = tl.load(cos + position * HALF + lane)
    s = tl.load(sin + position * HALF + lane)
    gain = tl.where(is_query, Q_SCALE, 1.0)
    return (first * c - second * s) * gain, (second * c + first * s) * gain


@jit
def _head_norm_rope(
    qkv, positions, cos, sin, q_weight, k_weight, out, num_positions,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, HALF: tl.constexpr,
    EPS: tl.constexpr, Q_SCALE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One token a program, all its query and key heads at once."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    lane = tl.arange(0, HALF)[None, :]
    inside = (head < HEADS + KV_HEADS) & (lane < HALF)
    source = qkv + token * (HEADS + 2 * KV_HEADS) * 2 * HALF + head * 2 * HALF + lane
    first, second = rotate_heads(
        source, lane, inside, head < HEADS, tl.load(positions + token), cos, sin, q_weight, k_weight,
        num_positions, HALF, EPS, Q_SCALE, NORM,
    )  # fmt: skip
    target = out + token * (HEADS + KV_HEADS) * 2 * HALF + head * 2 * HALF + lane
    tl.store(target, first.to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF, second.to(out.dtype.element_ty), mask=inside)


def _allocate(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor,
    q_weight: Tensor | None, k_weight: Tensor | None, heads: int, kv_heads: int, eps: float, q_scale: float,
) -> Tensor:  # fmt: skip
    return torch.empty(
        (qkv.shape[0], (heads + kv_heads) * 2 * cos.shape[1]), dtype=qkv.dtype, device=qkv.device
    )


@register("head_norm_rope", allocate=_allocate, cpu=reference.head_norm_rope)
def _launch(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor,
    q_weight: Tensor | None, k_weight: Tensor | None, heads: int, kv_heads: int, eps: float, q_scale: float,
) -> Tensor:  # fmt: skip
    out = _allocate(qkv, positions, cos, sin, q_weight, k_weight, heads, kv_heads, eps, q_scale)
    norm = q_weight is not None and k_weight is not None
    block_heads = next_power_of_2(heads + kv_heads)
    half = cos.shape[1]
    wrap_triton(_head_norm_rope)[(qkv.shape[0],)](
        qkv, positions, cos, sin,
        cos if q_weight is None else q_weight, cos if k_weight is None else k_weight, out, cos.shape[0],
        HEADS=heads, KV_HEADS=kv_heads, BLOCK_HEADS=block_heads, HALF=half, EPS=eps, Q_SCALE=q_scale,
        NORM=norm, num_warps=4 if block_heads * half >= 1024 else 2,
    )  # fmt: skip
    return out


def head_norm_rope(
    qkv: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor] | None,
    *, heads: int, kv_heads: int, eps: float, q_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """qkv[T, (heads + 2 kv_heads) * D] contiguous, positions int[T], tables cos and sin float32[P, D/2].

    Returns q[T, heads, D], k[T, kv_heads, D] and v as a view of qkv. ValueError for a width that does not
    fit.
    """
    cos, sin = tables
    head_dim = 2 * cos.shape[1]
    if qkv.shape[1] != (heads + 2 * kv_heads) * head_dim:
        raise ValueError(
            f"qkv.shape[1] = {qkv.shape[1]!r}: {heads} + 2 x {kv_heads} heads of {head_dim} do not fit"
        )
    q_weight, k_weight = weights or (None, None)
    qk = _launch(qkv, positions, cos, sin, q_weight, k_weight, heads, kv_heads, eps, q_scale)
    return split_heads(qk, qkv, heads, kv_heads)


def split_heads(qk: Tensor, qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys that were made ready, values where the projection wrote them: views [T, heads, D]."""
    head_dim = qk.shape[1] // (heads + kv_heads)
    q, k = qk.split([heads * head_dim, kv_heads * head_dim], dim=-1)
    v = qkv[:, (heads + kv_heads) * head_dim :]
    return (
        q.unflatten(-1, (heads, head_dim)),
        k.unflatten(-1, (kv_heads, head_dim)),
        v.unflatten(-1, (kv_heads, head_dim)),
    )
