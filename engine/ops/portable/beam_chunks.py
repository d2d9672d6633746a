"""Kernels of boundgen::beam_select that read logits: maxima of chunks of CHUNK columns, sums for the norms.

    maxima[r, c] = max over chunk c of x[r]
    peaks[r, t], sums[r, t]: max over tile t of x[r], and the sum of e^(x[r] - max)

This is the only whole read of the logits; x = logits, times scales[r] where a product comes raw. A sum is NaN
where a logit of its tile is not finite, and so is the row's norm then. With legal sequences columns are a
node's edges: their maxima come from a pass of their own, which visits the edges that there are.
"""

from engine.ops.portable.language import jit, tl

CHUNK = 64  # as in engine.beam.selection
TILE = 64  # chunks a program


@jit
def chunk_maxima(
    logits, scales, maxima, peaks, sums, columns, row_stride, tiles, chunks_stride,
    CHUNK: tl.constexpr, TILE: tl.constexpr, SCALED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles). Bound by memory: 800 rows of 152k columns: 68 us on one H200, their bytes 57."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    chunk = tile * TILE + tl.arange(0, TILE)
    column = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    inside = column < columns
    never = float("-inf")
    x = tl.load(logits + row * row_stride + column, mask=inside, other=never).to(tl.float32)
    if SCALED:
        x = x * tl.load(scales + row)
    highest = tl.max(x, 1)
    if KEEP:
        tl.store(maxima + row * chunks_stride + chunk, highest, mask=chunk * CHUNK < columns)
    peak = tl.max(highest, 0)
    base = tl.where(tl.abs(peak) < float("inf"), peak, 0.0)
    total = tl.sum(tl.sum(tl.exp2((x - base) * 1.4426950408889634), 1), 0)
    # NaN and +inf are in the sum; -inf is not.
    lowest = tl.min(tl.min(tl.where(inside, x, 0.0), 1), 0)
    total = tl.where(lowest == never, float("nan"), total)
    tl.store(peaks + row * tiles + tile, peak)
    tl.store(sums + row * tiles + tile, total)


@jit
def edge_maxima(
    logits, scales, scores, nodes, offsets, tokens, maxima, columns, row_stride, first_token, chunks_stride,
    CHUNK: tl.constexpr, TILE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of the most edges): a program past its node's edges ends at once."""
    row = tl.program_id(0).to(tl.int64)
    node = tl.load(nodes + row)
    start = tl.load(offsets + node)
    degree = tl.load(offsets + node + 1) - start
    if (tl.program_id(1) * TILE * CHUNK >= degree) | (tl.load(scores + row) == float("-inf")):
        return
    chunk = tl.program_id(1) * TILE + tl.arange(0, TILE)
    edge = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    token = tl.load(tokens + start + edge, mask=edge < degree, other=-1) - first_token
    inside = (edge < degree) & (token >= 0) & (token < columns)
    x = tl.load(logits + row * row_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    if SCALED:
        x = x * tl.load(scales + row)
    tl.store(maxima + row * chunks_stride + chunk, tl.max(x, 1), mask=chunk * CHUNK < degree)
