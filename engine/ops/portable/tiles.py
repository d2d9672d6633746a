"""Tiles of products whose rows are many or few: which there are is decided where a kernel runs, as a graph is
made for any number of rows.
"""

from dataclasses import dataclass

from engine.ops.portable.language import cdiv

MULTIPROCESSORS = 132  # of an H100 or H200: as many programs run at once, at most


@dataclass(frozen=True)
class Tile:
    """Sizes in elements. `few_rows`, half of rows, is a tile's where all such tiles run at once; 0: never."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    few_rows: int = 0
    few_stages: int = 0

    def few_tiles(self, outputs: int) -> int:
        """The most tiles of few_rows, one above the other, that run at once with all columns."""
        return MULTIPROCESSORS // cdiv(outputs, self.columns) if self.few_rows else 0

    def programs(self, num_rows: int, outputs: int) -> int:
        """One a tile, whichever way it goes, and some more; `num_rows` may be symbolic."""
        return (cdiv(num_rows, self.rows) + self.few_tiles(outputs) // 2) * cdiv(outputs, self.columns)
