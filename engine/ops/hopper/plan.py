"""The attention's work list, made on the device once a forward pass (so that a captured graph serves any
samples of its bucket).

An item is 64 tokens of one sample x two q heads of one kv head: (first row of the sample, its length, first
token, q head | kv head << 16). Items go longest first, in snake order, to persistent blocks: block b takes
items offsets[b] .. offsets[b + 1] - 1. Rows after the last sample become samples of up to 64 tokens, so that
every row of the attention's output is written. Kernel: csrc/batch.cu (plan_kernel); it never lets the next
kernel start early, so that later ones may read its list at once.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from engine.ops.hopper.library import PlanCall, call, check, current_stream, pointer

TILE = 64
MAX_SAMPLES = 8192  # their tile counts lie in shared memory
MAX_SAMPLE_TOKENS = 65536


def units(num_q: int, num_kv: int) -> int:
    """Items that share 64 tokens of a sample: pairs of q heads, by kv head."""
    return num_kv * math.ceil(num_q // num_kv / 2)


def _new(
    cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int
) -> tuple[Tensor, Tensor]:
    # A sample or the padding has at most tokens / 64 + 1 tiles.
    capacity = (positions.shape[0] // TILE + cu_seqlens.shape[0]) * units(num_q, num_kv)
    return cu_seqlens.new_empty(capacity, 4), cu_seqlens.new_empty(num_blocks + 1)


@torch.library.custom_op("boundgen::hopper_plan", mutates_args=(), device_types="cuda")
def plan(
    library: str, cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int
) -> tuple[Tensor, Tensor]:
    """cu_seqlens int32[S + 1], positions [T] (for T alone) -> items int32[capacity, 4], offsets
    int32[num_blocks + 1].

    num_blocks: attention blocks to deal to; two a multiprocessor fill the chip.
    """
    check("cu_seqlens", cu_seqlens, (-1,), torch.int32)
    if cu_seqlens.shape[0] - 1 > MAX_SAMPLES or num_blocks < 1:
        raise ValueError(
            f"cu_seqlens has {cu_seqlens.shape[0] - 1} samples, num_blocks {num_blocks}: "
            f"wanted up to {MAX_SAMPLES}, at least 1"
        )
    items, offsets = _new(cu_seqlens, positions, num_q, num_kv, num_blocks)
    sizes = (cu_seqlens.shape[0] - 1, positions.shape[0], num_q, num_kv, num_blocks)
    call(
        library,
        "plan",
        PlanCall(pointer(cu_seqlens), pointer(items), pointer(offsets), *sizes, current_stream(cu_seqlens)),
    )
    return items, offsets


@plan.register_fake
def _(
    library: str, cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int
) -> tuple[Tensor, Tensor]:
    return _new(cu_seqlens, positions, num_q, num_kv, num_blocks)


@plan.register_kernel("cpu")
def plan_reference(
    library: str, cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int
) -> tuple[Tensor, Tensor]:
    """The oracle: the same list in Python."""
    bounds, tokens = cu_seqlens.tolist(), positions.shape[0]
    ratio, pairs = num_q // num_kv, math.ceil(num_q // num_kv / 2)
    samples = list(pairwise(bounds))
    by_tiles = sorted(
        samples, key=lambda s: -math.ceil((s[1] - s[0]) / TILE)
    )  # stable, as the kernel's ranks are
    longest = max((math.ceil((end - start) / TILE) for start, end in samples), default=0)
    work = [(s, e - s, TILE * t) for t in reversed(range(longest)) for s, e in by_tiles if e - s > TILE * t]
    work += [(s, min(TILE, tokens - s), 0) for s in range(bounds[-1], tokens, TILE)]
    heads = [kv * ratio + 2 * pair | kv << 16 for kv in range(num_kv) for pair in range(pairs)]
    bins: list[list[tuple[int, int, int, int]]] = [[] for _ in range(num_blocks)]
    for i, item in enumerate((*w, h) for w in work for h in heads):
        turn, place = divmod(i, num_blocks)
        bins[num_blocks - 1 - place if turn % 2 else place].append(item)
    items, offsets = _new(cu_seqlens, positions, num_q, num_kv, num_blocks)
    flat = [item for dealt in bins for item in dealt]
    items.zero_()[: len(flat)] = torch.tensor(flat, dtype=torch.int32).view(-1, 4)
    offsets[:] = torch.tensor([0, *(len(b) for b in bins)]).cumsum(0)
    return items, offsets
