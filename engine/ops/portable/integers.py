"""Parts of kernels that make int8 values: rounding, and a 32-point Hadamard transform with its block scales.

    int8(v)   nearest, ties to even, saturating at -128 and 127: engine.quant.integers.round_int8 to the bit
    blocks    z = transform of a tile's 128 columns, scale[row] = max |z| / 127, q = int8(z / scale)

Logical groups of the transform are 32 neighbours, as engine.quant has them. Stored, they are the columns
whose numbers differ in bits 0, 3, 4, 5 and 6: of an accumulator's row a thread holds just those, so that
nothing crosses threads. Whatever makes the columns takes them in that order, and the weight behind has it
offline (`stored_columns`).
"""

import torch
from torch import Tensor

from engine.ops.portable.language import jit, tl

GROUP_ROWS = 128  # of a weight that share a scale
BLOCK_COLUMNS = 128  # of down's input that do
DISTANCES = (1, 8, 16, 32, 64)  # of the transform, in its order; 2 and 4 tell its groups apart


@jit
def to_int8(value):
    """float32 tile -> int8. Clamping first keeps the sums from being contracted with what made `value`."""
    value = tl.clamp(value, -128.0, 127.0)
    return ((value + 12582912.0) - 12582912.0).to(tl.int8)  # 1.5 * 2^23: what is added is rounded to integers


@jit
def row_scale_of(largest):
    """The scale that makes 127 of a row's largest magnitude; divided as torch divides."""
    return tl.maximum(tl.div_rn(largest, 127.0), 1e-12)


@jit
def _butterfly(value, ROWS: tl.constexpr, DISTANCE: tl.constexpr):
    """Columns a and b that lie DISTANCE apart become a + b and a - b."""
    pairs = tl.reshape(value, [ROWS, 64 // DISTANCE, 2, DISTANCE])
    second = tl.arange(0, 2)[None, None, :, None] == 1
    plus = tl.expand_dims(tl.sum(pairs, 2), 2)
    minus = tl.expand_dims(tl.sum(tl.where(second, -pairs, pairs), 2), 2)
    return tl.reshape(tl.where(second, minus, plus), [ROWS, 128])


@jit
def logical_column(stored):
    """stored_columns of one block, in a kernel."""
    return (stored // 2 % 4) * 32 + stored // 8 * 2 + stored % 2


@jit
def quantise_block(value, ROWS: tl.constexpr):
    """float32[ROWS, 128] of stored columns -> int8 of its transform and float32[ROWS], the scales that turn
    it back."""
    value = _butterfly(value, ROWS, 1)
    value = _butterfly(value, ROWS, 8)
    value = _butterfly(value, ROWS, 16)
    value = _butterfly(value, ROWS, 32)
    value = _butterfly(value, ROWS, 64)
    scale = row_scale_of(tl.max(tl.abs(value), 1))
    factor = tl.div_rn(1.0, scale)
    return to_int8(value * factor[:, None]), scale * 0.17677669529663687  # 32^-0.5: the sums are not divided


def stored_columns(width: int) -> Tensor:
    """int64[width], a multiple of 128: stored column p of down's input is logical column order[p]."""
    p = torch.arange(width)
    r = p % BLOCK_COLUMNS
    within, group = r // 8 * 2 + r % 2, r % 8 // 2
    return p // BLOCK_COLUMNS * BLOCK_COLUMNS + 32 * group + within
