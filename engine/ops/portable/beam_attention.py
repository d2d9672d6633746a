"""boundgen::tiled_beam_attention: one decode step's attention of all beams, on tensor cores.

    out[r, h] = sum_s p[s] v[s, h'] / sum_s p[s]      p[s] = 2^((q[r, h] · k[s, h']) log2(e) / sqrt(D) - max)

s runs over r's own keys (its new one, then those of its suffix by ancestor) and its prompt's; the contract is
that of ops.beam_attention. A program takes some beams of one prompt with all query heads of one key
head: rows = beams x group, so a prompt is read once for all of them. The beams' own keys are a tile too,
SLOTS of each beam side by side, under a mask that lets a row see its own beam's: on one H200 that beat
gathering them row by row by 1.2 to 1.8 times. One running softmax goes through both.

A prompt is not split over programs: 64 keys take 0.7 us, so up to 300 tokens there is nothing to win. A lone
request with 2,048 would gain, at the cost of a second kernel a layer for everybody.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops import reference
from engine.ops.portable.language import capability, cdiv, jit, next_power_of_2, register, tl

HEAD_DIMS = (16, 32, 64, 128)  # what a tile of a tensor core and the registers allow


class Tiles(NamedTuple):
    """Of one program: how many beams; own keys of each, and keys of the prompt, at a time; how many tiles of
    own keys are under way."""

    beams: int
    slots: int
    keys: int
    own_stages: int


def choose_tiles(group: int, dim: int, arch: int) -> Tiles:
    """What leaves no register spilled. A warpgroup of sm_90 multiplies 64 rows at once."""
    narrow, hopper = dim <= 64, arch >= 90
    own_keys = (64 if hopper else 32) if narrow else 16
    rows = 64 if narrow or hopper else 32
    beams = min(max(own_keys, 32), max(1, rows // next_power_of_2(group)))
    return Tiles(beams, max(1, own_keys // beams), 64 if narrow else 32, 1)


@jit
def _attend(queries, keys, values, visible, extra, FACTOR: tl.constexpr, highest, total, weighted):
    """One tile of the softmax: keys[DIM, N], values[N, DIM], `extra` added to the N scores.

    No second mask: every row that counts has seen a key, and 2^(-1e30 - max) is zero.
    """
    scores = tl.dot(queries, keys, input_precision="ieee") * FACTOR + extra[None, :]
    scores = tl.where(visible, scores, -1e30)
    peak = tl.maximum(highest, tl.max(scores, 1))
    weight = tl.exp2(scores - peak[:, None])
    shrink = tl.exp2(highest - peak)
    total = total * shrink + tl.sum(weight, 1)
    weighted = tl.dot(weight.to(values.dtype), values, weighted * shrink[:, None], input_precision="ieee")
    return peak, total, weighted


@jit
def _attend_to_own(
    tile, queries, k, v, suffix_k, suffix_v, ancestors, first_row, num_beams, num_rows,
    k_stride, v_stride, suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
    highest, total, weighted,
    FACTOR: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, TILE_BEAMS: tl.constexpr,
    SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Own key 0 of a beam is the new one, own key j + 1 that of slot j; this is keys tile * SLOTS and on."""
    dim = tl.arange(0, DIM)
    own = tl.arange(0, TILE_BEAMS * SLOTS)
    beam = own // SLOTS
    index = tile * SLOTS + own % SLOTS
    slot = (index - 1).to(tl.int64)
    row = first_row + beam
    is_new = (index == 0) & (beam < num_beams)
    is_stored = (index > 0) & (index <= ALL_SLOTS) & (beam < num_beams)
    source = tl.load(ancestors + slot * num_rows + row, mask=is_stored, other=-1)
    there = is_new | (source >= 0)
    old_k = suffix_k + slot * suffix_k_slot + source * suffix_k_stride
    old_v = suffix_v + slot * suffix_v_slot + source * suffix_v_stride
    key_at = tl.multiple_of(tl.where(is_new, k + row * k_stride, old_k), 16)
    value_at = tl.multiple_of(tl.where(is_new, v + row * v_stride, old_v), 16)
    keys = tl.load(key_at[None, :] + dim[:, None], mask=there[None, :], other=0.0)
    values = tl.load(value_at[:, None] + dim[None, :], mask=there[:, None], other=0.0)
    # Zero times another beam's NaN would be NaN: what is not finite goes to its own beam's scores instead.
    zeros = values.to(tl.float32) * 0.0
    values = tl.where(zeros == 0.0, values, 0.0)
    is_mine = (tl.arange(0, TILE_BEAMS * PADDED) // PADDED)[:, None] == beam[None, :]
    return _attend(
        queries, keys, values, is_mine & there[None, :], tl.sum(zeros, 1), FACTOR, highest, total, weighted
    )


@jit
def _beam_attention(
    q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens, out, beams, num_rows,
    q_stride, k_stride, v_stride, prompt_k_stride, prompt_v_stride,
    suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
    FACTOR: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    TILE_BEAMS: tl.constexpr, SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr, ALL_PADDED: tl.constexpr,
    KEYS: tl.constexpr, OWN_STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (kv heads, tiles of beams, prompts). Strides are of rows; a row's heads lie together."""
    kv_head = tl.program_id(0)
    first_beam = tl.program_id(1) * TILE_BEAMS
    prompt = tl.program_id(2)
    num_beams = beams - first_beam  # of this tile, or more
    first_row = (prompt * beams + first_beam).to(tl.int64)
    start = tl.load(cu_seqlens + prompt)
    length = tl.load(cu_seqlens + prompt + 1) - start
    dim = tl.arange(0, DIM)
    beam = tl.arange(0, TILE_BEAMS * PADDED) // PADDED
    member = tl.arange(0, TILE_BEAMS * PADDED) % PADDED
    wanted = ((beam < num_beams) & (member < GROUP))[:, None]
    row = (first_row + beam)[:, None]
    query_head = (kv_head * GROUP + member)[:, None] * DIM + dim[None, :]
    queries = tl.load(q + row * q_stride + query_head, mask=wanted, other=0.0)
    highest = tl.full([TILE_BEAMS * PADDED], -1e30, tl.float32)
    total = tl.zeros([TILE_BEAMS * PADDED], tl.float32)
    weighted = tl.zeros([TILE_BEAMS * PADDED, DIM], tl.float32)
    if ALL_SLOTS >= SLOTS:  # more than one tile of own keys: how many of them are in use?
        slot = tl.arange(0, ALL_PADDED)[:, None]
        each = tl.arange(0, TILE_BEAMS)[None, :]
        inside = (slot < ALL_SLOTS) & (each < num_beams)
        known = tl.load(ancestors + slot.to(tl.int64) * num_rows + first_row + each, mask=inside, other=-1)
    head = kv_head * DIM
    highest, total, weighted = _attend_to_own(
        0, queries, k + head, v + head, suffix_k + head, suffix_v + head, ancestors, first_row, num_beams,
        num_rows, k_stride, v_stride, suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
        highest, total, weighted, FACTOR, PADDED, DIM, TILE_BEAMS, SLOTS, ALL_SLOTS,
    )  # fmt: skip
    if ALL_SLOTS >= SLOTS:
        used = tl.max(tl.max(tl.where(known >= 0, slot + 1, 0), 1), 0)
        for tile in tl.range(1, used // SLOTS + 1, num_stages=OWN_STAGES):
            highest, total, weighted = _attend_to_own(
                tile, queries, k + head, v + head, suffix_k + head, suffix_v + head, ancestors, first_row,
                num_beams, num_rows, k_stride, v_stride, suffix_k_slot, suffix_k_stride, suffix_v_slot,
                suffix_v_stride, highest, total, weighted, FACTOR, PADDED, DIM, TILE_BEAMS, SLOTS, ALL_SLOTS,
            )  # fmt: skip
    key = tl.arange(0, KEYS)
    nothing = tl.zeros([KEYS], tl.float32)
    key_at = prompt_k + (start + key).to(tl.int64)[None, :] * prompt_k_stride + head + dim[:, None]
    value_at = prompt_v + (start + key).to(tl.int64)[:, None] * prompt_v_stride + head + dim[None, :]
    for begin in tl.range(0, length, KEYS):
        there = begin + key < length
        keys = tl.load(key_at + begin * prompt_k_stride, mask=there[None, :], other=0.0)
        values = tl.load(value_at + begin * prompt_v_stride, mask=there[:, None], other=0.0)
        highest, total, weighted = _attend(
            queries, keys, values, there[None, :], nothing, FACTOR, highest, total, weighted
        )
    result = weighted / total[:, None]
    tl.store(out + row * (HEADS * DIM) + query_head, result.to(out.dtype.element_ty), mask=wanted)


def _allocate(
    q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, suffix_k: Tensor, suffix_v: Tensor,
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def _oracle(
    q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, suffix_k: Tensor, suffix_v: Tensor,
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    prompt, suffix = (prompt_k, prompt_v), (suffix_k, suffix_v)
    return reference.beam_attention(q, k, v, prompt, suffix, ancestors, cu_seqlens)


def _by_rows(x: Tensor) -> Tensor:
    """x[..., heads, D] with a row's entries side by side, as they are in a view of a fused projection."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()


@register("tiled_beam_attention", allocate=_allocate, cpu=_oracle)
def _launch(
    q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, suffix_k: Tensor, suffix_v: Tensor,
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    out = _allocate(q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens)
    q, k, v, prompt_k, prompt_v, suffix_k, suffix_v = (
        _by_rows(x) for x in (q, k, v, prompt_k, prompt_v, suffix_k, suffix_v)
    )
    rows, heads, dim = q.shape
    kv_heads, slots = k.shape[1], ancestors.shape[0]
    prompts = cu_seqlens.shape[0] - 1
    beams = rows // prompts
    group = heads // kv_heads
    tiles = choose_tiles(group, dim, capability(q))
    wrap_triton(_beam_attention)[(kv_heads, cdiv(beams, tiles.beams), prompts)](
        q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens, out, beams, rows,
        q.stride(0), k.stride(0), v.stride(0), prompt_k.stride(0), prompt_v.stride(0),
        suffix_k.stride(0), suffix_k.stride(1), suffix_v.stride(0), suffix_v.stride(1),
        FACTOR=math.log2(math.e) / math.sqrt(dim), HEADS=heads, GROUP=group, PADDED=next_power_of_2(group),
        DIM=dim, TILE_BEAMS=tiles.beams, SLOTS=tiles.slots, ALL_SLOTS=slots,
        ALL_PADDED=next_power_of_2(slots), KEYS=tiles.keys, OWN_STAGES=tiles.own_stages, num_warps=4,
    )  # fmt: skip
    return out


def tiled_beam_attention(
    q: Tensor, k: Tensor, v: Tensor, prompt: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor],
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    """Shapes as in ops.beam_attention; head_dim one of HEAD_DIMS."""
    out: Tensor = _launch(q, k, v, *prompt, *suffix, ancestors.contiguous(), cu_seqlens)
    return out
