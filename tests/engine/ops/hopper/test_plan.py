"""The attention's work list: everything once, dealt evenly; the kernel's list is the oracle's."""

import math
from collections import Counter

import pytest
import torch

from engine.ops.hopper.plan import num_key_blocks, plan, plan_reference
from tools.bench.synthetic import mixed_lengths

CASES = {
    "one": ([1], 0),
    "edges": ([63, 64, 65, 128, 1], 7),
    "empty samples": ([0, 3, 0, 0, 700], 65),
    "only padding": ([0], 200),
    "mixed": (mixed_lengths(8192), 300),
    "many": ([3] * 1500, 0),
    "shared": ([70, 1, 64, 0, 130, 65, 200, 5], 90),
    "fifteen share": ([86] * 15 + [64, 110], 20),
}
# of each segment: its parent, rows of the constant prefix
PREFIXES = {
    "shared": [(5, 0), (5, 63), (6, 64), (6, 1), (6, 65), (-1, 64), (-1, 200), (-1, 0)],
    "fifteen share": [(15, 40)] * 15 + [(-1, 40), (-1, 0)],
}


def inputs(case, device="cpu"):
    lengths, padding = CASES[case]
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    before = torch.tensor(PREFIXES[case], dtype=torch.int32, device=device) if case in PREFIXES else None
    return cu_seqlens, torch.zeros(sum(lengths) + padding, dtype=torch.int64, device=device), before


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_q", "num_kv"), [(16, 8), (14, 2), (9, 3)])
def test_every_row_and_head_is_dealt_once(case, num_q, num_kv):
    cu_seqlens, positions, before = inputs(case)
    items, offsets = plan_reference("", cu_seqlens, positions, num_q, num_kv, 264, before)
    dealt = Counter()
    for start, length, token, heads in items[: offsets[-1], :4].tolist():
        kv, first = heads >> 16, heads & 0xFFFF
        mine = [h for h in (first, first + 1) if h < (kv + 1) * num_q // num_kv]
        dealt.update((row, h) for row in range(start + token, start + min(token + 64, length)) for h in mine)
    assert set(dealt.values()) == {1}
    assert len(dealt) == positions.shape[0] * num_q


@pytest.mark.parametrize("share", [False, True])
def test_blocks_get_similar_work(share):
    """Also where every other segment has long prefixes."""
    cu_seqlens, positions, _ = inputs("mixed")
    before = [(-1, 200 if share and i % 2 else 0) for i in range(len(cu_seqlens) - 1)]
    given = torch.tensor(before, dtype=torch.int32)
    items, offsets = plan_reference("", cu_seqlens, positions, 16, 8, 264, given)
    blocks = [num_key_blocks(*item[2:3], *item[4:7]) for item in items[: offsets[-1]].tolist()]
    cost = torch.tensor([0.0, *(n + 0.8 for n in blocks)]).cumsum(0)[offsets.long()].diff()
    assert cost.max() < 1.25 * cost.mean()


def test_an_item_names_what_its_segment_continues():
    cu_seqlens, positions, before = inputs("shared")
    items, offsets = plan_reference("", cu_seqlens, positions, 2, 1, 1, before)
    bounds = cu_seqlens.tolist()
    segment = {start: i for i, start in enumerate(bounds[:-1])}  # of several, all but the last are empty
    for start, _, _, _, first, count, constant, _ in items[: offsets[-1]].tolist():
        parent, wanted = PREFIXES["shared"][segment[start]] if start < bounds[-1] else (-1, 0)
        assert constant == wanted
        assert (first, first + count) == ((bounds[parent], bounds[parent + 1]) if parent >= 0 else (0, 0))
    blocks = [num_key_blocks(*item[2:3], *item[4:7]) for item in items[: offsets[-1]].tolist()]
    assert blocks == sorted(blocks, reverse=True)
    assert blocks[0] == 4 + 2 + 3  # 200 tokens of a parent, 65 constant ones, the third tile
    of_others = plan_reference("", cu_seqlens, positions, 2, 1, 1, before[:3])
    assert torch.equal(of_others[0], plan_reference("", cu_seqlens, positions, 2, 1, 1)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_q", "num_kv"), [(16, 8), (14, 2), (9, 3)])
@pytest.mark.parametrize("num_blocks", [1, 132, 264])
def test_kernel(case, num_q, num_kv, num_blocks, library, poison):
    cu_seqlens, positions, before = inputs(case, "cuda")
    poison()
    items, offsets = plan(library, cu_seqlens, positions, num_q, num_kv, num_blocks, before)
    want, want_offsets = plan_reference(library, cu_seqlens, positions, num_q, num_kv, num_blocks, before)
    assert torch.equal(offsets, want_offsets)
    num = int(offsets[-1])
    assert num <= math.prod(items.shape[:1])
    assert torch.equal(items[:num], want[:num])
