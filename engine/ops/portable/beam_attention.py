"""boundgen::tiled_beam_attention: one decode step's attention of all beams, on tensor cores.

    out[r, h] = sum_s p[s] v[s, h'] / sum_s p[s]      p[s] = 2^((q[r, h] · k[s, h']) log2(e) / sqrt(D) - max)

s runs over r's own keys (its new one, then those of its suffix by ancestor) and its prompt's; the contract is
that of ops.beam_attention. A program takes some beams of one prompt with all query heads of one key
head: rows = beams x group, so a prompt is read once for all of them. The beams' older own keys are a tile
too, SLOTS of each beam side by side, under a mask that lets a row see its own beam's: on one H200 that beat
gathering them row by row by 1.2 to 1.8 times. One running softmax goes through all, from the newest key on.

A prompt is not split over programs: 64 keys take 0.7 us, so up to 300 tokens there is nothing to win. A lone
request with 2,048 would gain, at the cost of a second kernel a layer for everybody.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops import reference
from engine.ops.portable.beam_attention_kernel import beam_attention_kernel
from engine.ops.portable.language import capability, cdiv, has_large_blocks, next_power_of_2, register
from engine.ops.portable.tiles import MULTIPROCESSORS

HEAD_DIMS = (16, 32, 64, 128)  # what a tile of a tensor core and the registers allow
AT_ONCE = 3 * MULTIPROCESSORS  # small programs that an H200 runs


class Tiles(NamedTuple):
    """Of one program: how many beams; own keys of each, and keys of the prompt, at a time."""

    beams: int
    slots: int
    keys: int

    def programs(self, kv_heads: int, beams: int, prompts: int) -> int:
        """Of one launch, `beams` of each prompt."""
        return kv_heads * cdiv(beams, self.beams) * prompts


def choose_tiles(group: int, dim: int, arch: int, *, few: bool = False) -> Tiles:
    """What leaves no register spilled. A warpgroup of sm_90 multiplies 64 rows at once; sm_120 has none.

    `few`, of rows: heads of 128 then take 16 rows a program, which waits for less; many such programs read a
    prompt too often. One request of Qwen3's heads takes 5.8 us so and 9.9 in tiles of 64 rows, three 8.2 and
    9.9, eight 16 and 12, ten of 300 tokens 37 and 33 (H200).
    """
    narrow, padded = dim <= 64, next_power_of_2(group)
    rows = 16 if few and not narrow else 64 if narrow or has_large_blocks(arch) else 32
    beams = max(1, min(32, rows // padded))
    # Four slots are all of a search with four steps. Wide heads leave registers for fewer keys.
    slots = min(4, 64 // beams) if narrow else 4 if rows == 16 else 16 // beams
    return Tiles(beams, max(1, slots, 16 // beams), 32)


class Rotation(NamedTuple):
    """What queries and new keys still need, where these and the new values go to a suffix's slot as well.

    positions int64[R], alike for all beams of a prompt; cos and sin float32[P, D/2]; head norms' weights [D];
    slot int64[1]."""

    positions: Tensor
    cos: Tensor
    sin: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    slot: Tensor
    eps: float


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


def attend(
    kernel: Any, tiles: Tiles, out: Tensor, heads: tuple[Tensor, Tensor, Tensor],
    prompt: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor], ancestors: Tensor, cu_seqlens: Tensor,
    rotation: Rotation | None = None,
) -> None:  # fmt: skip
    """Launch `kernel`; tensors as in ops.beam_attention, a row's entries side by side."""
    (q, k, v), (prompt_k, prompt_v), (suffix_k, suffix_v) = heads, prompt, suffix
    rows, num_heads, dim = q.shape
    kv_heads, slots = k.shape[1], ancestors.shape[0]
    prompts = cu_seqlens.shape[0] - 1
    beams = rows // prompts
    group = num_heads // kv_heads
    # What is not there is not read: any tensor stands for it.
    none = cu_seqlens
    turn = Rotation(none, none, none, None, None, none, 0.0) if rotation is None else rotation
    q_weight, k_weight = (turn.cos if x is None else x for x in (turn.q_weight, turn.k_weight))
    kernel[(kv_heads, cdiv(beams, tiles.beams), prompts)](
        q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens, out, beams, rows,
        turn.positions, turn.cos, turn.sin, q_weight, k_weight, turn.slot, turn.cos.shape[0],
        q.stride(0), k.stride(0), v.stride(0), prompt_k.stride(0), prompt_v.stride(0),
        suffix_k.stride(0), suffix_k.stride(1), suffix_v.stride(0), suffix_v.stride(1),
        FACTOR=math.log2(math.e) / math.sqrt(dim), HEADS=num_heads, GROUP=group,
        PADDED=next_power_of_2(group), DIM=dim, LANES=max(16, dim // 2), TILE_BEAMS=tiles.beams,
        SLOTS=tiles.slots, ALL_SLOTS=slots, ALL_PADDED=next_power_of_2(slots), KEYS=tiles.keys,
        KEEP=rotation is not None, NORM=turn.q_weight is not None, EPS=turn.eps,
        num_warps=4,
    )  # fmt: skip


@register("tiled_beam_attention", allocate=_allocate, cpu=_oracle)
def _launch(
    q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, suffix_k: Tensor, suffix_v: Tensor,
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    out = _allocate(q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens)
    q, k, v, prompt_k, prompt_v, suffix_k, suffix_v = (
        _by_rows(x) for x in (q, k, v, prompt_k, prompt_v, suffix_k, suffix_v)
    )
    tiles = choose_tiles(q.shape[1] // k.shape[1], q.shape[2], capability(q))
    attend(
        wrap_triton(beam_attention_kernel), tiles, out, (q, k, v), (prompt_k, prompt_v), (suffix_k, suffix_v),
        ancestors, cu_seqlens,
    )  # fmt: skip
    return out


def tiled_beam_attention(
    q: Tensor, k: Tensor, v: Tensor, prompt: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor],
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    """Shapes as in ops.beam_attention; head_dim one of HEAD_DIMS."""
    out: Tensor = _launch(q, k, v, *prompt, *suffix, ancestors.contiguous(), cu_seqlens)
    return out
