"""How a decode step's attention is cut: what runs at once, and what then does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.ops.portable.beam_attention import AT_ONCE, choose_tiles


@pytest.mark.parametrize(("prompts", "crowded"), [(1, False), (15, False), (16, True), (28, True)])
def test_hundred_beams_of_two_key_heads(prompts: int, crowded: bool) -> None:
    tiles = choose_tiles(7, 64, 90)
    assert (tiles.programs(2, 100, prompts) > AT_ONCE) is crowded


@pytest.mark.parametrize("dim", [64, 128])
def test_a_crowd_takes_fewer_keys_and_the_same_beams(dim: int) -> None:
    tiles = choose_tiles(7, dim, 90)
    assert tiles.crowded() == tiles._replace(keys=32)


@pytest.mark.parametrize(("prompts", "keys"), [(15, 64), (16, 32)])
def test_a_launch_is_cut_by_how_crowded_it_is(prompts: int, keys: int, record: Any) -> None:
    heads, kv_heads, dim, rows = 14, 2, 64, 100 * prompts

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
    assert launch.constants["KEYS"] == keys
