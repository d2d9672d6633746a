"""The attention's work list: everything once, dealt evenly; the kernel's list is the oracle's."""

import math
from collections import Counter

import pytest
import torch

from engine.ops.hopper.plan import plan, plan_reference
from tools.bench.synthetic import mixed_lengths

CASES = {
    "one": ([1], 0),
    "edges": ([63, 64, 65, 128, 1], 7),
    "empty samples": ([0, 3, 0, 0, 700], 65),
    "only padding": ([0], 200),
    "mixed": (mixed_lengths(8192), 300),
    "many": ([3] * 1500, 0),
}


def inputs(case, device="cpu"):
    lengths, padding = CASES[case]
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    return cu_seqlens, torch.zeros(sum(lengths) + padding, dtype=torch.int64, device=device)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_q", "num_kv"), [(16, 8), (14, 2), (9, 3)])
def test_every_row_and_head_is_dealt_once(case, num_q, num_kv):
    cu_seqlens, positions = inputs(case)
    items, offsets = plan_reference("", cu_seqlens, positions, num_q, num_kv, 264)
    dealt = Counter()
    for start, length, token, heads in items[: offsets[-1]].tolist():
        kv, first = heads >> 16, heads & 0xFFFF
        mine = [h for h in (first, first + 1) if h < (kv + 1) * num_q // num_kv]
        dealt.update((row, h) for row in range(start + token, start + min(token + 64, length)) for h in mine)
    assert set(dealt.values()) == {1}
    assert len(dealt) == positions.shape[0] * num_q


def test_blocks_get_similar_work():
    cu_seqlens, positions = inputs("mixed")
    items, offsets = plan_reference("", cu_seqlens, positions, 16, 8, 264)
    cost = torch.cat([torch.zeros(1), (items[: offsets[-1], 2] // 64 + 1.8).cumsum(0)])[offsets.long()].diff()
    assert cost.max() < 1.25 * cost.mean()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_q", "num_kv"), [(16, 8), (14, 2), (9, 3)])
@pytest.mark.parametrize("num_blocks", [1, 132, 264])
def test_kernel(case, num_q, num_kv, num_blocks, library, poison):
    cu_seqlens, positions = inputs(case, "cuda")
    poison()
    items, offsets = plan(library, cu_seqlens, positions, num_q, num_kv, num_blocks)
    want, want_offsets = plan_reference(library, cu_seqlens, positions, num_q, num_kv, num_blocks)
    assert torch.equal(offsets, want_offsets)
    num = int(offsets[-1])
    assert num <= math.prod(items.shape[:1])
    assert torch.equal(items[:num], want[:num])
