"""boundgen::linear_int8: y = x Wᵀ from int8 operands on integer tensor cores, bf16 out, for any GPU from
sm_80 on.

    y[t, n] = w_scale[n / 128] * x_scale[t] * sum_k x[t, k] w[n, k]  (+ bias[n]) (+ residual[t, n])
    or          w_scale[n / 128] * sum over blocks b of x_scale[b, t] * (sum over the 128 columns of b)

Sums of products are integers, exact in any order. The residual is added before the one rounding to bf16. Rows
beyond T are read from the last one and not stored; columns beyond N and K likewise, with zeros for K's.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.integers import BLOCK_COLUMNS, GROUP_ROWS
from engine.ops.portable.language import capability, cdiv, has_large_blocks, jit, register, tl
from engine.ops.portable.quantised import Activation
from engine.ops.portable.tiles import Tile


def choose_tile(outputs: int, inputs: int, blocks: bool, arch: int) -> Tile:
    """The one configuration for a matrix. By blocks there are two accumulators, and a step is a block."""
    if blocks:
        return (
            Tile(128, 128, BLOCK_COLUMNS, 8, 3, 64, 4)
            if has_large_blocks(arch)
            else Tile(128, 128, 128, 8, 2)
        )
    if not has_large_blocks(arch):
        return Tile(128, 128, 64, 8, 4)
    depth = 128 if inputs % 128 == 0 else 64
    return Tile(128, 256, depth, 8, 3, 64, 4) if outputs >= 2048 else Tile(128, 128, depth, 8, 3, 64, 4)


@jit
def _sum_products(
    x_at, w_at, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """float32 of the exact integer sums."""
    total = tl.zeros([ROWS, COLS], tl.int32)
    if WIDTH % DEPTH == 0:
        for at in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            total = tl.dot(tl.load(x_at + at), tl.load(w_at + at).T, total, out_dtype=tl.int32)
    else:
        k = tl.arange(0, DEPTH)[None, :]
        for at in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            rows = tl.load(x_at + at, mask=at + k < WIDTH, other=0)
            columns = tl.load(w_at + at, mask=at + k < WIDTH, other=0)
            total = tl.dot(rows, columns.T, total, out_dtype=tl.int32)
    return total.to(tl.float32)


@jit
def _sum_blocks(
    x_at, w_at, scale_at, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The same with the scale of a row and 128 columns in it."""
    total = tl.zeros([ROWS, COLS], tl.float32)
    for at in tl.range(0, WIDTH, 128, num_stages=STAGES):
        scale = tl.load(scale_at + at // 128 * num_rows)
        block = tl.dot(tl.load(x_at + at), tl.load(w_at + at).T, out_dtype=tl.int32)
        total += block.to(tl.float32) * scale[:, None]
    return total


@jit
def _linear_tile(
    x, x_scale, weight, weight_scale, bias, residual, out, num_rows, row_tile, column_tile,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, BLOCKS: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLS + tl.arange(0, COLS)
    real_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    real_column = tl.minimum(column, OUTPUTS - 1)
    k = tl.arange(0, DEPTH)[None, :]
    x_at = x + real_row[:, None] * WIDTH + k
    w_at = weight + real_column[:, None] * WIDTH + k
    if BLOCKS:
        value = _sum_blocks(x_at, w_at, x_scale + real_row, num_rows, WIDTH, ROWS, COLS, STAGES)
    else:
        value = _sum_products(x_at, w_at, WIDTH, ROWS, COLS, DEPTH, STAGES)
        if SCALED:
            value *= tl.load(x_scale + real_row)[:, None]
    value *= tl.load(weight_scale + real_column // 128)[None, :]
    if BIASED:
        value += tl.load(bias + real_column).to(tl.float32)[None, :]
    target = row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    inside = (row < num_rows)[:, None] & (column < OUTPUTS)[None, :]
    if ADDS:
        value += tl.load(residual + target, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + target, value.to(out.dtype.element_ty), mask=inside)


@jit
def _linear_int8(
    x, x_scale, weight, weight_scale, bias, residual, out, num_rows,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    SWIZZLE: tl.constexpr, BLOCKS: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr,
    ADDS: tl.constexpr, STAGES: tl.constexpr, FEW_ROWS: tl.constexpr, FEW_TILES: tl.constexpr,
    FEW_STAGES: tl.constexpr,
):  # fmt: skip
    """Programs that have no tile end at once, as in gate_up."""
    program = tl.program_id(0)
    column_tiles = tl.cdiv(OUTPUTS, COLS)
    few = num_rows <= FEW_ROWS * FEW_TILES
    if FEW_TILES > 0:  # noqa: SIM102 - this one when it is compiled, the other one when it runs
        if few:
            few_tiles = tl.cdiv(num_rows, FEW_ROWS)
            if program < few_tiles * column_tiles:
                _linear_tile(
                    x, x_scale, weight, weight_scale, bias, residual, out, num_rows, program % few_tiles,
                    program // few_tiles, WIDTH, OUTPUTS, FEW_ROWS, COLS, DEPTH, FEW_STAGES, BLOCKS, SCALED,
                    BIASED, ADDS,
                )  # fmt: skip
    # SWIZZLE row tiles go through all columns together, so that both operands stay in L2
    first = program // (SWIZZLE * column_tiles) * SWIZZLE
    in_group = tl.minimum(tl.cdiv(num_rows, ROWS) - first, SWIZZLE)
    if (in_group > 0) & (few == 0):
        within = program % (SWIZZLE * column_tiles)
        if within // in_group < column_tiles:
            _linear_tile(
                x, x_scale, weight, weight_scale, bias, residual, out, num_rows, first + within % in_group,
                within // in_group, WIDTH, OUTPUTS, ROWS, COLS, DEPTH, STAGES, BLOCKS, SCALED, BIASED, ADDS,
            )  # fmt: skip


def _allocate(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None,
    residual: Tensor | None, blocks: bool,
) -> Tensor:  # fmt: skip
    return torch.empty((x.shape[0], weight.shape[0]), dtype=torch.bfloat16, device=x.device)


@register("linear_int8", allocate=_allocate, cpu=reference.linear_int8)
def _launch(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None,
    residual: Tensor | None, blocks: bool,
) -> Tensor:  # fmt: skip
    out = _allocate(x, x_scale, weight, weight_scale, bias, residual, blocks)
    outputs, width = weight.shape
    tile = choose_tile(outputs, width, blocks, capability(x))
    wrap_triton(_linear_int8)[(tile.programs(x.shape[0], outputs),)](
        x, weight_scale if x_scale is None else x_scale, weight, weight_scale, out if bias is None else bias,
        out if residual is None else residual, out, x.shape[0],
        WIDTH=width, OUTPUTS=outputs, ROWS=tile.rows, COLS=tile.columns, DEPTH=tile.depth, SWIZZLE=8,
        BLOCKS=blocks, SCALED=x_scale is not None, BIASED=bias is not None, ADDS=residual is not None,
        STAGES=tile.stages, FEW_ROWS=tile.few_rows, FEW_TILES=tile.few_tiles(outputs),
        FEW_STAGES=tile.few_stages, num_warps=tile.warps,
    )  # fmt: skip
    return out


def linear_int8(
    x: Activation, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None, *,
    residual: Tensor | None = None, blocks: bool = False,
) -> Tensor:  # fmt: skip
    """x int8[T, K] with no scale, float32[T, 1], or by `blocks` float32[K / 128, T]; weight int8[N, K],
    weight_scale float32[ceil(N / 128)], bias bf16[N], residual bf16[T, N] -> bf16[T, N].

    ValueError for a type, a shape or a count of scales, or widths that are no multiples of 16 (of 128 by
    blocks).
    """
    outputs, width = weight.shape
    multiple = BLOCK_COLUMNS if blocks else 16
    if (x.values.dtype, weight.dtype) != (torch.int8, torch.int8):
        raise ValueError(f"x is {x.values.dtype}, weight {weight.dtype}: both must be torch.int8")
    if width % multiple or outputs % 16:
        raise ValueError(f"weight.shape = {tuple(weight.shape)!r}: wanted multiples of 16 and {multiple}")
    if weight_scale.shape != (cdiv(outputs, GROUP_ROWS),):
        raise ValueError(f"weight_scale.shape = {tuple(weight_scale.shape)!r}: one for each 128 rows")
    if x.values.dim() != 2 or x.values.shape[1] != width:
        raise ValueError(f"x.values.shape = {tuple(x.values.shape)!r}: must be [T, {width}]")
    if blocks and x.scale is None:
        raise ValueError("x.scale = None: blocks have scales")
    rows = x.values.shape[0]
    scales = (width // BLOCK_COLUMNS, rows) if blocks else (rows, 1)
    if x.scale is not None and x.scale.shape != scales:
        raise ValueError(f"x.scale.shape = {tuple(x.scale.shape)!r}: must be {scales!r}")
    out: Tensor = _launch(x.values, x.scale, weight, weight_scale, bias, residual, blocks)
    return out
