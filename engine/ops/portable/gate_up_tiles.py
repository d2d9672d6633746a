"""How boundgen::gate_up cuts its work into tiles, and which shapes it takes.

A tile of 128 x 128 takes a multiprocessor's tensor cores 4 us in e4m3 at H=896, and 100 rows have 38 of them.
So where tiles of half as many rows all run at once, those are taken: 7 us instead of 10 (I=4864, H200).
"""

from dataclasses import dataclass

from engine.ops.portable.language import cdiv, has_large_blocks

MULTIPROCESSORS = 132  # of an H100 or H200: as many programs run at once, at most


@dataclass(frozen=True)
class GateUpTile:
    """`columns` of gates and as many of ups; sizes in elements. `few_rows`, half of rows, is a tile's where
    all such tiles run at once; 0: never."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    few_rows: int
    few_stages: int

    def few_tiles(self, half: int) -> int:
        """The most tiles of few_rows, one above the other, that run at once with all columns."""
        return MULTIPROCESSORS // (half // self.columns) if self.few_rows else 0

    def programs(self, num_rows: int, half: int) -> int:
        """One a tile, whichever way it goes, and some more; `num_rows` may be symbolic."""
        return (cdiv(num_rows, self.rows) + self.few_tiles(half) // 2) * (half // self.columns)


def choose_tile(width: int, quantised: bool, arch: int, *, blocks: bool = False) -> GateUpTile:
    """The one configuration for a hidden size, by measurement on an H200; a multiple of 64 is needed.

    `blocks`: of int8 results, whose tiles take 128 columns: whole rows of them, or a transform would cross
    warps.
    """
    if blocks:
        if not has_large_blocks(arch):  # both accumulators fit the registers beside such short steps alone
            return GateUpTile(128, 128, 32 if quantised else 16, 8, 5, 0, 0)
        tile = choose_tile(width, quantised, arch)
        return GateUpTile(128, 128, tile.depth, 8, tile.stages, 0, 0)
    if not has_large_blocks(
        arch
    ):  # two accumulators of 128 x 128 do not fit the registers of older tensor cores
        return GateUpTile(128, 64, 64, 8, 3, 0, 0)
    if quantised and width % 128 == 0:
        return GateUpTile(128, 128, 128, 8, 3, 64, 4)
    if quantised:
        return GateUpTile(128, 128, 64, 8, 4, 64, 6)
    return GateUpTile(128, 128, 64, 8, 3, 64, 4)


def serves_gate_up(hidden_size: int, intermediate_size: int, bias: bool) -> bool:
    """Whether the fused kernel takes a layer's shape; else the projection and silu_mul run apart."""
    return hidden_size % 64 == 0 and intermediate_size % 128 == 0 and not bias
