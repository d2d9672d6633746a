"""A product of few rows whose depth is split over programs: partial sums, for a kernel that adds them up.

    parts[s, t, n] = sum_k x[t, k] w[n, k]      k of the s-th part, float32

100 rows have few tiles, and each went through the whole depth alone: 38 steps one after the other at K=4864,
6.6 us for weights that memory gives in one (e4m3, N=896, cuBLASLt on an H200). Parts have whole steps, as
even as that allows; the order of sums is fixed. No scale is in them.
"""

from typing import NamedTuple

from engine.ops.portable.language import cdiv, has_large_blocks, jit, tl
from engine.ops.portable.tiles import MULTIPROCESSORS

COLUMNS = 64
DEPTHS = {True: 128, False: 64}  # by whether it is quantised: 128 bytes of a row


class Split(NamedTuple):
    """Sizes in elements; `splits`: into how many parts the depth goes."""

    rows: int
    columns: int
    depth: int
    splits: int
    warps: int
    stages: int


def most_rows(width: int, outputs: int, quantised: bool) -> int:
    """For how many rows at most splitting is the faster way for a weight [outputs, width]; 0: for none, or
    not served."""
    if width % DEPTHS[quantised] != 0 or outputs % COLUMNS != 0:
        return 0
    return 256 if quantised and width > 2 * outputs else 0


def choose_split(num_rows: int, width: int, outputs: int, quantised: bool, arch: int) -> Split:
    """As many parts as run at once with all tiles. A warpgroup multiplies 64 rows at once, or fewer just as
    long."""
    rows, depth = 64 if num_rows <= 64 else 128, DEPTHS[quantised]
    tiles = cdiv(num_rows, rows) * (outputs // COLUMNS)
    splits = max(1, min(width // depth, MULTIPROCESSORS // tiles))
    return Split(rows, COLUMNS, depth, splits, 4, 4 if has_large_blocks(arch) else 3)


@jit
def split_product_kernel(
    x, weight, parts, num_rows,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program a tile and part: (column tile, part, row tile)."""
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    part = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside = (row < num_rows)[:, None]
    steps: tl.constexpr = WIDTH // DEPTH
    first = part * steps // tl.num_programs(1)
    stop = (part + 1) * steps // tl.num_programs(1)
    k = tl.arange(0, DEPTH)
    x_at = x + row[:, None] * WIDTH + k[None, :]
    weight_at = weight + column[:, None] * WIDTH + k[None, :]
    sums = tl.zeros([ROWS, COLS], tl.float32)
    for at in tl.range(first * DEPTH, stop * DEPTH, DEPTH, num_stages=STAGES):
        rows = tl.load(x_at + at, mask=inside, other=0.0)
        sums = tl.dot(rows, tl.load(weight_at + at).T, sums)
    tl.store(parts + (part * num_rows + row[:, None]) * OUTPUTS + column[None, :], sums, mask=inside)
