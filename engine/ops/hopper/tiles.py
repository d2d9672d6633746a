"""Which tile width a fused GEMM takes, and how its tiles are dealt to blocks (the Python mirror of gemm.cuh's
loop).

Contract: pure arithmetic on sizes; the same on every machine and for any share of its multiprocessors, so
that a bucket always runs the same kernels (equal bits: a row's partial sums depend on its tiles' width).
"""

import math
from collections.abc import Iterator, Sequence

ROWS = 128  # gemm.cuh: kRows
CLUSTER = 2
NUM_SMS = 132  # of an H100 or H200 SXM; only the choice of width depends on it
PARTIALS = 8  # gemm.cuh: kPartials, slots for a row's sums of squares, one a tile
STAGE_BYTES = 128
# A stage of a 128 x W tile costs about W + 40 (the 40: reading the activations once more from shared memory),
# an epilogue about 2 W: fitted to 256- against 128-wide tiles at T = 1024 .. 8192 of the 0.6B shape.
STAGE_OVERHEAD = 40
EPILOGUE = 2
CHAIN_FILL = 0.7


def num_tiles(rows: int, width: int, tile: int) -> int:
    """Work units of a launch: tiles of two row blocks (one a block of the cluster)."""
    return math.ceil(rows / (ROWS * CLUSTER)) * math.ceil(width / tile)


def choose_width(rows: int, width: int, depth_bytes: int, widths: Sequence[int]) -> int:
    """The tile width of least estimated time; ties go to the wider. rows: tokens; width: outputs;
    depth_bytes: bytes of a row of a.
    """
    clusters = NUM_SMS // CLUSTER
    stages = math.ceil(depth_bytes / STAGE_BYTES)

    def cost(tile: int) -> tuple[int, int]:
        waves = math.ceil(num_tiles(rows, width, tile) / clusters)
        return waves * (stages * (tile + STAGE_OVERHEAD) + EPILOGUE * tile), -tile

    return min(widths, key=cost)


def chain_width(rows: int, width: int) -> int:
    """The width of o's and down's tiles in a chain, where a phase need not end on a full wave: least work
    among the widths that give most clusters a tile, else the narrowest.
    """
    clusters = NUM_SMS // CLUSTER
    enough = [
        tile for tile in residual_widths(width) if num_tiles(rows, width, tile) >= CHAIN_FILL * clusters
    ]
    work = {tile: math.ceil(width / tile) * (tile + STAGE_OVERHEAD) for tile in enough}
    return min(work, key=work.__getitem__) if work else min(residual_widths(width))


def residual_widths(width: int) -> tuple[int, ...]:
    """Tile widths whose partial sums fit their slots; empty where none does."""
    return tuple(tile for tile in (128, 192, 256) if math.ceil(width / tile) <= PARTIALS)


def gate_up_widths(blocks: bool = False) -> tuple[int, ...]:
    """Tile widths of gate_up. blocks: its results get a scale for each row and 128 columns."""
    return (256,) if blocks else (128, 256)


def qkv_widths(head_dim: int) -> tuple[int, ...]:
    """Tile widths that hold whole heads."""
    return (128, 192, 256) if head_dim == 64 else (128, 256)


def deal(rows: int, width: int, tile: int, clusters: int) -> Iterator[tuple[int, int, int, int]]:
    """(block, first row, first column, order within the block) of every tile, as gemm_kernel takes them."""
    tiles_n = math.ceil(width / tile)
    grid = min(num_tiles(rows, width, tile), clusters)
    for cluster in range(grid):
        for order, t in enumerate(range(cluster, num_tiles(rows, width, tile), grid)):
            for rank in range(CLUSTER):
                yield (
                    cluster * CLUSTER + rank,
                    ((t // tiles_n) * CLUSTER + rank) * ROWS,
                    (t % tiles_n) * tile,
                    order,
                )


def chain_tickets(rows: int, widths: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """(phase, row pair, first column, number of the first ticket not waited for) by ascending ticket.

    widths: (outputs, tile) of each phase. A tile waits for every tile of its row pair in the phase before.
    """
    pairs, first = math.ceil(rows / (ROWS * CLUSTER)), 0
    before = 0  # tiles a row pair had in the phase before
    start_before = 0
    for phase, (width, tile) in enumerate(widths):
        tiles_n = math.ceil(width / tile)
        for local in range(pairs * tiles_n):
            pair = local // tiles_n
            yield phase, pair, local % tiles_n * tile, start_before + (pair + 1) * before if phase else 0
        before, start_before, first = tiles_n, first, first + pairs * tiles_n
