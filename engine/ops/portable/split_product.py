"""A product of few rows whose depth is split over programs: partial sums, for a kernel that adds them up.

    parts[s, t, n] = sum_k x[t, k] w[n, k]      k of the s-th part, float32

100 rows have few tiles, and each went through the whole depth alone: 38 steps one after the other at K=4864.
With the norm behind it 6.8 us for 7.9 (e4m3, N=896, K=4864; cuBLASLt, H200), 5.4 for 6.4 (bf16, N=K=896).
Parts have whole steps, as even as that allows; the order of sums is fixed. No scale is in them.
"""

from typing import NamedTuple

from engine.ops.portable.language import cdiv, has_large_blocks, jit, let_next_start, tl
from engine.ops.portable.tiles import MULTIPROCESSORS

ROWS, COLUMNS = 64, (64, 128)  # of a tile: a warpgroup multiplies 64 rows at once, or fewer just as long
DEPTHS = {True: 128, False: 64}  # by whether it is quantised: 128 bytes of a row
# Of five shapes with 300 rows or fewer each was faster split, none from 400 on. Larger weights: not measured.
MOST_ROWS, MOST_BYTES = 320, 9_000_000


class Split(NamedTuple):
    """Sizes in elements; `splits`: into how many parts the depth goes."""

    columns: int
    depth: int
    splits: int
    stages: int

    def grid(self, num_rows: int, outputs: int) -> tuple[int, int, int]:
        """Of the kernel's programs."""
        return outputs // self.columns, self.splits, cdiv(num_rows, ROWS)


def serves_split(width: int, outputs: int, quantised: bool) -> bool:
    """Whether a weight [outputs, width] has whole steps and tiles."""
    return width % DEPTHS[quantised] == 0 and outputs % COLUMNS[0] == 0


def pays_to_split(num_rows: int, width: int, outputs: int, quantised: bool, arch: int) -> bool:
    """Whether that was measured to be the faster way, on sm_90."""
    is_small = width * outputs * (1 if quantised else 2) <= MOST_BYTES
    return 90 <= arch < 100 and num_rows <= MOST_ROWS and is_small and serves_split(width, outputs, quantised)


def choose_split(num_rows: int, width: int, outputs: int, quantised: bool, arch: int) -> Split:
    """As many parts as run at once with all tiles."""
    columns = COLUMNS[num_rows > 2 * ROWS and outputs % COLUMNS[1] == 0]
    tiles, depth = cdiv(num_rows, ROWS) * (outputs // columns), DEPTHS[quantised]
    splits = max(1, min(width // depth, MULTIPROCESSORS // tiles))
    return Split(columns, depth, splits, 4 if has_large_blocks(arch) else 3)


@jit
def split_product_kernel(
    x, weight, parts, num_rows,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, TILE_ROWS: tl.constexpr, COLS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program a tile and part: (column tile, part, row tile). EARLY: the next kernel waits for the parts
    itself."""
    if EARLY:
        let_next_start()
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    part = tl.program_id(1)
    row = tl.program_id(2) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    inside = (row < num_rows)[:, None]
    steps: tl.constexpr = WIDTH // DEPTH
    first = part * steps // tl.num_programs(1)
    stop = (part + 1) * steps // tl.num_programs(1)
    k = tl.arange(0, DEPTH)
    x_at = x + row[:, None] * WIDTH + k[None, :]
    weight_at = weight + column[:, None] * WIDTH + k[None, :]
    sums = tl.zeros([TILE_ROWS, COLS], tl.float32)
    for at in tl.range(first * DEPTH, stop * DEPTH, DEPTH, num_stages=STAGES):
        rows = tl.load(x_at + at, mask=inside, other=0.0)
        sums = tl.dot(rows, tl.load(weight_at + at).T, sums)
    tl.store(parts + (part * num_rows + row[:, None]) * OUTPUTS + column[None, :], sums, mask=inside)
