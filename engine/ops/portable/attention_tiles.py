"""boundgen::attention_tiles: the work list of varlen_attention, made once a forward on the device.

    tiles[w] = (first row of the segment, its length, first token of the tile, the segment)

Tiles of the largest first token come first: they have the most keys, so the long ones do not end last.
There are T // tokens + S places, enough for any lengths that add up to T; unused ones have length 0.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.language import cdiv, jit, next_power_of_2, register, tl


@jit
def _attention_tiles(
    cu_seqlens, tiles, num_samples, TOKENS: tl.constexpr, SAMPLES: tl.constexpr, STEPS: tl.constexpr
):  # fmt: skip
    """One place a program. How many tiles lie at or above level z falls with z, so the place's level is
    found by bisection, then the sample by counting those that reach that level."""
    place = tl.program_id(0)
    sample = tl.arange(0, SAMPLES)
    valid = sample < num_samples
    start = tl.load(cu_seqlens + sample, mask=valid, other=0)
    length = tl.load(cu_seqlens + sample + 1, mask=valid, other=0) - start
    count = (length + TOKENS - 1) // TOKENS  # tiles of each sample
    low = 0
    high = tl.max(count, 0)
    for _ in tl.static_range(STEPS):  # the largest level with more than `place` tiles at or above it
        middle = (low + high) // 2
        above = tl.sum(tl.maximum(count - middle, 0), 0)
        more = above > place
        low = tl.where(more & (middle < high), middle, low)
        high = tl.where(more, high, middle)
    reaches = (count > low).to(tl.int32)
    rank = place - tl.sum(tl.maximum(count - low - 1, 0), 0)
    chosen = (tl.cumsum(reaches, 0) - 1 == rank) & (reaches == 1)
    out = tiles + place * 4
    tl.store(out, tl.sum(tl.where(chosen, start, 0), 0))
    tl.store(out + 1, tl.sum(tl.where(chosen, length, 0), 0))
    tl.store(out + 2, low * TOKENS)
    tl.store(out + 3, tl.sum(tl.where(chosen, sample, 0), 0))


def _allocate(
    cu_seqlens: Tensor, positions: Tensor, tokens: int, max_samples: int, max_seqlen: int
) -> Tensor:
    places = positions.shape[0] // tokens + cu_seqlens.shape[0] - 1
    return torch.empty((places, 4), dtype=torch.int32, device=cu_seqlens.device)


@register("attention_tiles", allocate=_allocate, cpu=reference.attention_tiles)
def _launch(cu_seqlens: Tensor, positions: Tensor, tokens: int, max_samples: int, max_seqlen: int) -> Tensor:
    tiles = _allocate(cu_seqlens, positions, tokens, max_samples, max_seqlen)
    steps = cdiv(max_seqlen, tokens).bit_length() + 1
    wrap_triton(_attention_tiles)[(tiles.shape[0],)](
        cu_seqlens, tiles, cu_seqlens.shape[0] - 1,
        TOKENS=tokens, SAMPLES=next_power_of_2(max_samples), STEPS=steps, num_warps=4,
    )  # fmt: skip
    return tiles


def attention_tiles(
    cu_seqlens: Tensor, positions: Tensor, *, tokens: int, max_samples: int, max_seqlen: int
) -> Tensor:
    """cu_seqlens int32[S+1], positions[T] (for T alone) -> int32[T // tokens + S, 4].

    S must not exceed `max_samples`, nor a sample `max_seqlen` tokens: more would be left out.
    """
    if min(tokens, max_samples, max_seqlen) < 1:
        raise ValueError(
            f"tokens, max_samples, max_seqlen = {(tokens, max_samples, max_seqlen)!r}: must be positive"
        )
    tiles: Tensor = _launch(cu_seqlens, positions, tokens, max_samples, max_seqlen)
    return tiles
