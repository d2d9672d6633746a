"""How a decode step's attention is cut: small programs for few rows of wide heads, and legal shapes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.ops.portable.beam_attention import AT_ONCE, HEAD_DIMS, choose_tiles


@pytest.mark.parametrize(("prompts", "few"), [(1, True), (3, True), (4, False), (20, False)])
def test_hundred_beams_of_eight_wide_key_heads(prompts: int, few: bool) -> None:
    tiles = choose_tiles(2, 128, 90, few=True)
    assert (tiles.programs(8, 100, prompts) <= AT_ONCE) is few


@pytest.mark.parametrize("arch", [80, 90, 120])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16, 32])
def test_a_tensor_core_takes_them(group: int, dim: int, few: bool, arch: int) -> None:
    """16 own keys or more, as they are what values are summed over; rows are whole powers of two."""
    tiles = choose_tiles(group, dim, arch, few=few)
    assert tiles.beams * tiles.slots >= 16
    assert all(size & (size - 1) == 0 for size in tiles)


@pytest.mark.parametrize("dim", [16, 64])
def test_narrow_heads_have_tiles_of_one_kind(dim: int) -> None:
    assert choose_tiles(7, dim, 90, few=True) == choose_tiles(7, dim, 90)


@pytest.mark.parametrize(("prompts", "beams"), [(3, 8), (4, 32)])
def test_a_launch_is_cut_by_how_many_rows_it_has(prompts: int, beams: int, record: Any) -> None:
    heads, kv_heads, dim, rows = 16, 8, 128, 100 * prompts

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    at, table = empty(rows, dtype=torch.int64), empty(512, dim // 2, dtype=torch.float32)
    suffixes, kept = empty(2, 2, 4, rows, kv_heads, dim), empty(2, 2, 1, 3 * prompts, kv_heads, dim)
    borders = 3 * torch.arange(prompts + 1, dtype=torch.int32)
    qkv = empty(rows, (heads + 2 * kv_heads) * dim)
    args = (
        qkv, at, table, table, None, None, at[:1], *suffixes, *kept, empty(4, rows, dtype=torch.int64),
        borders, heads, kv_heads, 1e-6, 1, 512,
    )  # fmt: skip
    (launch,) = record(SimpleNamespace(module="kept_attention", args=args), 90)
    assert launch.constants["TILE_BEAMS"] == beams
