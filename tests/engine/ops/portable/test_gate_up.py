"""Programs of the fused gate: one a tile whatever the rows, and not many more."""

from __future__ import annotations

import pytest

from engine.ops.portable.gate_up_tiles import choose_tile
from engine.ops.portable.language import cdiv
from engine.ops.portable.linear_int8 import choose_tile as choose_linear_tile
from engine.ops.portable.tiles import MULTIPROCESSORS, Tile


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(("width", "half"), [(896, 4864), (1024, 3072), (576, 1536), (2048, 18944)])
def test_every_tile_has_a_program(width: int, half: int, quantised: bool, arch: int) -> None:
    check(choose_tile(width, quantised, arch), half)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("outputs", [576, 960, 1024, 4096, 6144])
def test_every_tile_of_an_int8_product_has_a_program(outputs: int, blocks: bool, arch: int) -> None:
    check(choose_linear_tile(outputs, 1024, blocks, arch), outputs)


def check(tile: Tile, outputs: int) -> None:
    few, columns = tile.few_tiles(outputs), cdiv(outputs, tile.columns)
    for rows in range(1, 4097):
        programs, wide = tile.programs(rows, outputs), cdiv(rows, tile.rows) * columns
        assert programs >= wide
        assert programs - wide <= MULTIPROCESSORS // 2
        if rows <= few * tile.few_rows:
            assert cdiv(rows, tile.few_rows) * columns <= min(programs, MULTIPROCESSORS)


def test_a_lone_search_goes_by_few_rows() -> None:
    tile = choose_tile(896, True, 90)
    assert tile.few_tiles(4864) * tile.few_rows == 192
    assert tile.programs(100, 4864) == 2 * 38
