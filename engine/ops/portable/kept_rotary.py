"""boundgen::head_norm_rope_keep: head_norm_rope that also keeps each row's key and value for later passes.

    keys[layer, slot, t], values[layer, slot, t] = the rotated key and the value of row t

So a search's caches are filled where they lie, without a pass of their own. The operator writes to arguments
and stays opaque to a compiler: Python launches its kernel, which a captured graph replays without it. Whole
buffers and the layer's number are given, since a mutated view loses its offset in a compiled package (torch
2.13: every layer wrote to the first).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import engine.ops.packed_attention  # noqa: F401 -- defines the namespace
from engine.ops.portable import reference
from engine.ops.portable.language import jit, next_power_of_2, tl
from engine.ops.portable.rotary import rotate_heads, split_heads

NAME = "boundgen::head_norm_rope_keep"

_library = torch.library.Library("boundgen", "FRAGMENT")
_library.define(
    "head_norm_rope_keep(Tensor qkv, Tensor positions, Tensor cos, Tensor sin, Tensor? q_weight, "
    "Tensor? k_weight, Tensor slot, Tensor(a!) keys, Tensor(b!) values, int heads, int kv_heads, "
    "float eps, float q_scale, int layer) -> Tensor"
)


@dataclass(frozen=True)
class Kept:
    """Where the keys and values of one layer go: [layers, slots, T, kv_heads, D] contiguous, slot int[1]."""

    keys: Tensor
    values: Tensor
    slot: Tensor
    layer: int


@jit
def head_norm_rope_keep_kernel(
    qkv, positions, cos, sin, q_weight, k_weight, out, slot, keys, values, num_positions, num_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_KV: tl.constexpr,
    HALF: tl.constexpr, EPS: tl.constexpr, Q_SCALE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One token a program, all its heads at once."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    lane = tl.arange(0, HALF)[None, :]
    inside = (head < HEADS + KV_HEADS) & (lane < HALF)
    row = qkv + token * (HEADS + 2 * KV_HEADS) * 2 * HALF
    first, second = rotate_heads(
        row + head * 2 * HALF + lane, lane, inside, head < HEADS, tl.load(positions + token), cos, sin,
        q_weight, k_weight, num_positions, HALF, EPS, Q_SCALE, NORM,
    )  # fmt: skip
    first = first.to(out.dtype.element_ty)
    second = second.to(out.dtype.element_ty)
    target = out + token * (HEADS + KV_HEADS) * 2 * HALF + head * 2 * HALF + lane
    tl.store(target, first, mask=inside)
    tl.store(target + HALF, second, mask=inside)
    kept = (tl.load(slot).to(tl.int64) * num_rows + token) * KV_HEADS * 2 * HALF
    is_key = inside & (head >= HEADS)
    key = keys + kept + (head - HEADS) * 2 * HALF + lane
    tl.store(key, first, mask=is_key)
    tl.store(key + HALF, second, mask=is_key)
    column = tl.arange(0, BLOCK_KV)
    there = column < KV_HEADS * 2 * HALF
    value = tl.load(row + (HEADS + KV_HEADS) * 2 * HALF + column, mask=there, other=0.0)
    tl.store(values + kept + column, value, mask=there)


kernel = head_norm_rope_keep_kernel  # a name that profiles show


def launch(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, slot: Tensor, keys: Tensor, values: Tensor, heads: int, kv_heads: int,
    eps: float, q_scale: float, layer: int,
) -> Tensor:  # fmt: skip
    half = cos.shape[1]
    out = qkv.new_empty((qkv.shape[0], (heads + kv_heads) * 2 * half))
    block_heads = next_power_of_2(heads + kv_heads)
    norm = q_weight is not None and k_weight is not None
    kernel[(qkv.shape[0],)](
        qkv, positions, cos, sin, cos if q_weight is None else q_weight,
        cos if k_weight is None else k_weight,
        out, slot, keys[layer], values[layer], cos.shape[0], keys.shape[2],
        HEADS=heads, KV_HEADS=kv_heads, BLOCK_HEADS=block_heads,
        BLOCK_KV=next_power_of_2(kv_heads * 2 * half), HALF=half, EPS=eps, Q_SCALE=q_scale, NORM=norm,
        num_warps=4 if block_heads * half >= 1024 else 2,
    )  # fmt: skip
    return out


def _keep_plainly(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, slot: Tensor, keys: Tensor, values: Tensor, heads: int, kv_heads: int,
    eps: float, q_scale: float, layer: int,
) -> Tensor:  # fmt: skip
    out = reference.head_norm_rope(
        qkv, positions, cos, sin, q_weight, k_weight, heads, kv_heads, eps, q_scale
    )
    _, k, v = split_heads(out, qkv, heads, kv_heads)
    keys[layer, slot.long()], values[layer, slot.long()] = k, v
    return out


def _fake(qkv: Tensor, positions: Tensor, cos: Tensor, *more: object) -> Tensor:
    heads, kv_heads = (x for x in more[6:8] if isinstance(x, int))
    return torch.empty(
        (qkv.shape[0], (heads + kv_heads) * 2 * cos.shape[1]), dtype=qkv.dtype, device=qkv.device
    )


_library.impl("head_norm_rope_keep", _keep_plainly, "CPU")
_library.impl("head_norm_rope_keep", launch, "CUDA")
torch.library.register_fake(NAME, _fake, lib=_library)


def head_norm_rope_keep(
    qkv: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor] | None,
    kept: Kept, *, heads: int, kv_heads: int, eps: float, q_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As head_norm_rope, which says what is what; `kept` is written."""
    q_weight, k_weight = weights or (None, None)
    qk: Tensor = torch.ops.boundgen.head_norm_rope_keep(
        qkv, positions, *tables, q_weight, k_weight, kept.slot, kept.keys, kept.values, heads, kv_heads, eps,
        q_scale, kept.layer,
    )  # fmt: skip
    return split_heads(qk, qkv, heads, kv_heads)
