"""How boundgen::gate_up cuts its work into tiles, and which shapes it takes.

A tile of 128 x 128 takes a multiprocessor's tensor cores 4 us in e4m3 at H=896, and 100 rows have 38 of them.
So where tiles of half as many rows all run at once, those are taken: 7 us instead of 10 (I=4864, H200).
"""

from engine.ops.portable.language import has_large_blocks
from engine.ops.portable.tiles import Tile


def choose_tile(width: int, quantised: bool, arch: int, *, blocks: bool = False) -> Tile:
    """The one configuration for a hidden size, by measurement on an H200; a multiple of 64 is needed. Columns
    are of gates, and there are as many of ups.

    `blocks`: of int8 results, whose tiles take 128 columns: whole rows of them, or a transform would cross
    warps.
    """
    if blocks:
        if not has_large_blocks(arch):  # both accumulators fit the registers beside such short steps alone
            return Tile(128, 128, 32 if quantised else 16, 8, 5)
        tile = choose_tile(width, quantised, arch)
        return Tile(128, 128, tile.depth, 8, tile.stages)
    if not has_large_blocks(
        arch
    ):  # two accumulators of 128 x 128 do not fit the registers of older tensor cores
        return Tile(128, 64, 64, 8, 3)
    if quantised and width % 128 == 0:
        return Tile(128, 128, 128, 8, 3, 64, 4)
    if quantised:
        return Tile(128, 128, 64, 8, 4, 64, 6)
    return Tile(128, 128, 64, 8, 3, 64, 4)


def serves_gate_up(hidden_size: int, intermediate_size: int, bias: bool) -> bool:
    """Whether the fused kernel takes a layer's shape; else the projection and silu_mul run apart."""
    return hidden_size % 64 == 0 and intermediate_size % 128 == 0 and not bias
