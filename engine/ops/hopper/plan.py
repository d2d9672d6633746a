"""The attention's work list, made on the device once a forward pass (so that a captured graph serves any
samples of its bucket).

An item is 64 tokens of one segment x two q heads of one kv head: (first row of the segment, its length, first
token, q head | kv head << 16; its parent's first row, its length, rows of the constant prefix, 0). Those of
most keys, prefixes included, go first, in snake order, to persistent blocks: block b takes items offsets[b]
.. offsets[b + 1] - 1. Rows after the last segment become segments of up to 64 tokens, so that every row of
the attention's output is written. Kernel: csrc/batch.cu (plan_kernel); it never lets the next kernel start
early, so that later ones may read its list at once.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from engine.ops.hopper.library import PlanCall, call, check, current_stream, pointer

TILE = 64
ITEM = 8  # numbers of an item
MAX_SAMPLES = 8192  # segments: what they take in the list lies in shared memory
MAX_SAMPLE_TOKENS = 65536


def units(num_q: int, num_kv: int) -> int:
    """Items that share 64 tokens of a sample: pairs of q heads, by kv head."""
    return num_kv * math.ceil(num_q // num_kv / 2)


def num_key_blocks(token: int, parent: int, parent_length: int, constant: int) -> int:
    """Blocks of 64 keys that an item reads: the constant prefix', its parent's, its segment's so far."""
    return math.ceil(constant / TILE) + math.ceil(parent_length / TILE) + token // TILE + 1


def _new(
    cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int
) -> tuple[Tensor, Tensor]:
    # A sample or the padding has at most tokens / 64 + 1 tiles.
    capacity = (positions.shape[0] // TILE + cu_seqlens.shape[0]) * units(num_q, num_kv)
    return cu_seqlens.new_empty(capacity, ITEM), cu_seqlens.new_empty(num_blocks + 1)


def _of_segments(prefixes: Tensor | None, cu_seqlens: Tensor) -> Tensor | None:
    return prefixes if prefixes is not None and len(prefixes) == len(cu_seqlens) - 1 else None


@torch.library.custom_op("boundgen::hopper_plan", mutates_args=(), device_types="cuda")
def plan(
    library: str, cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int,
    prefixes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """cu_seqlens int32[S + 1], positions [T] (for T alone), prefixes int32[S, 2] as ops.packed_attention
    takes them (None or of another length: no segment has any) -> items int32[capacity, 8], offsets
    int32[num_blocks + 1].

    num_blocks: attention blocks to deal to; two a multiprocessor fill the chip.
    """
    check("cu_seqlens", cu_seqlens, (-1,), torch.int32)
    if cu_seqlens.shape[0] - 1 > MAX_SAMPLES or num_blocks < 1:
        raise ValueError(
            f"cu_seqlens has {cu_seqlens.shape[0] - 1} samples, num_blocks {num_blocks}: "
            f"wanted up to {MAX_SAMPLES}, at least 1"
        )
    before = _of_segments(prefixes, cu_seqlens)
    if before is not None:
        check("prefixes", before, (-1, 2), torch.int32)
    items, offsets = _new(cu_seqlens, positions, num_q, num_kv, num_blocks)
    tensors = map(pointer, (cu_seqlens, before, items, offsets))
    sizes = (cu_seqlens.shape[0] - 1, positions.shape[0], num_q, num_kv, num_blocks)
    call(library, "plan", PlanCall(*tensors, *sizes, current_stream(cu_seqlens)))
    return items, offsets


@plan.register_fake
def _(
    library: str, cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int,
    prefixes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _new(cu_seqlens, positions, num_q, num_kv, num_blocks)


@plan.register_kernel("cpu")
def plan_reference(
    library: str, cu_seqlens: Tensor, positions: Tensor, num_q: int, num_kv: int, num_blocks: int,
    prefixes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The oracle: the same list in Python."""
    bounds, tokens = cu_seqlens.tolist(), positions.shape[0]
    ratio, pairs = num_q // num_kv, math.ceil(num_q // num_kv / 2)
    segments, before = list(pairwise(bounds)), _of_segments(prefixes, cu_seqlens)
    work: list[tuple[int, ...]] = []
    for (start, end), (parent, constant) in zip(
        segments, [(-1, 0)] * len(segments) if before is None else before.tolist(), strict=True
    ):
        first, last = segments[parent] if parent >= 0 else (0, 0)
        seen = (first, last - first, constant, 0)
        work += [(start, end - start, token, *seen) for token in range(0, end - start, TILE)]
    work.sort(key=lambda item: -num_key_blocks(*item[2:6]))  # stable: ties by segment, as the kernel's ranks
    work += [(s, min(TILE, tokens - s), *[0] * 5) for s in range(bounds[-1], tokens, TILE)]
    heads = [kv * ratio + 2 * pair | kv << 16 for kv in range(num_kv) for pair in range(pairs)]
    bins: list[list[tuple[int, ...]]] = [[] for _ in range(num_blocks)]
    for i, item in enumerate((*w[:3], h, *w[3:]) for w in work for h in heads):
        turn, place = divmod(i, num_blocks)
        bins[num_blocks - 1 - place if turn % 2 else place].append(item)
    items, offsets = _new(cu_seqlens, positions, num_q, num_kv, num_blocks)
    flat = [item for dealt in bins for item in dealt]
    items.zero_()[: len(flat)] = torch.tensor(flat, dtype=torch.int32).view(-1, ITEM)
    offsets[:] = torch.tensor([0, *(len(b) for b in bins)]).cumsum(0)
    return items, offsets
