"""boundgen::gate_up: the first half of a SwiGLU MLP in one kernel, quantised for the down projection if
asked.

    out[t, i] = silu(x[t] · w[i]) * (x[t] · w[I + i])

Saves writing and reading [T, 2I]: at T=4096, H=1024, I=3072 in e4m3 47 us against 62 for GEMM and gate
(H200). Two accumulators of one tile share the rows of x. Rows beyond T are read from the last one and not
stored. Any type of x and w (bf16, e4m3, int8) goes with any of out; by "blocks" a tile has all 128 columns of
one.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.gate_up_tiles import choose_tile, serves_gate_up
from engine.ops.portable.integers import GROUP_ROWS, logical_column, quantise_block
from engine.ops.portable.language import capability, jit, register, tl
from engine.ops.portable.quantised import MODES, Activation, check_mode, empty_quantised


@jit
def _sum_both(
    x_at, gate_at, up_at, groups,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Both products, float32; of integers exact sums times the scales of the weight's rows."""
    sums: tl.constexpr = tl.int32 if INT8 else tl.float32
    gate = tl.zeros([ROWS, COLS], sums)
    up = tl.zeros([ROWS, COLS], sums)
    for at in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        rows = tl.load(x_at + at)
        gate = tl.dot(rows, tl.load(gate_at + at).T, gate, out_dtype=sums)
        up = tl.dot(rows, tl.load(up_at + at).T, up, out_dtype=sums)
    if INT8:
        gate = gate.to(tl.float32) * tl.load(groups)
        up = up.to(tl.float32) * tl.load(groups + HALF // 128)
    return gate, up


@jit
def _gate_up_tile(
    x, x_scale, weight, weight_scale, scale, out, out_scale, num_rows, row_tile, column_tile,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, INPUT: tl.constexpr, OUTPUT: tl.constexpr,
):  # fmt: skip
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)
    if OUTPUT == 5:
        column = logical_column(column)
    k = tl.arange(0, DEPTH)
    x_at = x + tl.minimum(row, num_rows - 1)[:, None] * WIDTH + k[None, :]
    gate_at = weight + (column_tile * COLS + column)[:, None] * WIDTH + k[None, :]
    gate, up = _sum_both(
        x_at, gate_at, gate_at + HALF * WIDTH, weight_scale + column_tile * COLS // 128,
        WIDTH, HALF, ROWS, COLS, DEPTH, STAGES, INPUT == 3,
    )  # fmt: skip
    if INPUT >= 2:
        factor = tl.load(x_scale + tl.minimum(row, num_rows - 1))
        if INPUT == 2:
            factor *= tl.load(weight_scale)
        gate *= factor[:, None]
        up *= factor[:, None]
    elif INPUT == 1:
        factor = tl.load(weight_scale) * tl.load(x_scale)
        gate *= factor
        up *= factor
    value = gate / (1.0 + tl.exp(-gate)) * up
    target = out + row[:, None] * HALF + (column_tile * COLS + tl.arange(0, COLS))[None, :]
    inside = row < num_rows
    if OUTPUT == 5:
        values, block_scale = quantise_block(value, ROWS)
        tl.store(target, values, mask=inside[:, None])
        tl.store(out_scale + column_tile * num_rows + row, block_scale, mask=inside)
    else:
        if OUTPUT == 1:
            value = tl.clamp(value * (1.0 / tl.load(scale)), -448.0, 448.0)
        tl.store(target, value.to(out.dtype.element_ty), mask=inside[:, None])


@jit
def _gate_up(
    x, x_scale, weight, weight_scale, scale, out, out_scale, num_rows,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    SWIZZLE: tl.constexpr, INPUT: tl.constexpr, OUTPUT: tl.constexpr,
    STAGES: tl.constexpr, FEW_ROWS: tl.constexpr, FEW_TILES: tl.constexpr, FEW_STAGES: tl.constexpr,
):  # fmt: skip
    """Which tiles there are is decided here, as a graph is made for any number of rows; programs that have
    none end at once."""
    program = tl.program_id(0)
    column_tiles: tl.constexpr = HALF // COLS
    few = num_rows <= FEW_ROWS * FEW_TILES
    if FEW_TILES > 0:  # noqa: SIM102 - this one when it is compiled, the other one when it runs
        if few:
            few_tiles = tl.cdiv(num_rows, FEW_ROWS)
            if program < few_tiles * column_tiles:
                _gate_up_tile(
                    x, x_scale, weight, weight_scale, scale, out, out_scale, num_rows, program % few_tiles,
                    program // few_tiles, WIDTH, HALF, FEW_ROWS, COLS, DEPTH, FEW_STAGES, INPUT, OUTPUT,
                )  # fmt: skip
    # SWIZZLE row tiles go through all columns together, so that both operands stay in L2
    first = program // (SWIZZLE * column_tiles) * SWIZZLE
    in_group = tl.minimum(tl.cdiv(num_rows, ROWS) - first, SWIZZLE)
    if (in_group > 0) & (few == 0):
        row_tile = first + program % (SWIZZLE * column_tiles) % in_group
        column_tile = program % (SWIZZLE * column_tiles) // in_group
        if column_tile < column_tiles:
            _gate_up_tile(
                x, x_scale, weight, weight_scale, scale, out, out_scale, num_rows, row_tile, column_tile,
                WIDTH, HALF, ROWS, COLS, DEPTH, STAGES, INPUT, OUTPUT,
            )  # fmt: skip


def _mode(scale: Tensor | None, blocks: bool) -> str:
    """Of the results."""
    return "blocks" if blocks else "none" if scale is None else "static"


def _mode_of(x: Tensor, x_scale: Tensor | None) -> str:
    if x_scale is None:
        return "none"
    if x.dtype == torch.int8:
        return "rows"
    return "token" if x_scale.dim() == 2 else "static"


def _allocate(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, scale: Tensor | None,
    blocks: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape, mode = (x.shape[0], weight.shape[0] // 2), _mode(scale, blocks)
    values, scales = empty_quantised(x, shape, mode)
    if mode == "none" and x_scale is not None:
        values = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    return values, scales


@register("gate_up", allocate=_allocate, cpu=reference.gate_up)
def _launch(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, scale: Tensor | None,
    blocks: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, out_scale = _allocate(x, x_scale, weight, weight_scale, scale, blocks)
    width, half = weight.shape[1], weight.shape[0] // 2
    tile = choose_tile(width, x_scale is not None, capability(x), blocks=blocks)
    wrap_triton(_gate_up)[(tile.programs(x.shape[0], half),)](
        x, out if x_scale is None else x_scale, weight, out if weight_scale is None else weight_scale,
        out if scale is None else scale, out, out_scale, x.shape[0],
        WIDTH=width, HALF=half, ROWS=tile.rows, COLS=tile.columns, DEPTH=tile.depth, SWIZZLE=8,
        INPUT=MODES[_mode_of(x, x_scale)], OUTPUT=MODES[_mode(scale, blocks)],
        STAGES=tile.stages, FEW_ROWS=tile.few_rows, FEW_TILES=tile.few_tiles(half),
        FEW_STAGES=tile.few_stages, num_warps=tile.warps,
    )  # fmt: skip
    return out, out_scale


def gate_up(
    x: Activation, weight: Tensor, weight_scale: Tensor | None = None, *, scale: Tensor | None = None,
    blocks: bool = False,
) -> Activation:  # fmt: skip
    """x[T, H] bf16, e4m3, or int8 by "rows", with its scale; weight[2I, H] of its type, gates first -> [T,
    I].

    scale float32[1]: e4m3 of out / scale; blocks: int8 by "blocks", of stored columns; else bf16. ValueError
    for a shape that serves_gate_up refuses.
    """
    if not serves_gate_up(weight.shape[1], weight.shape[0] // 2, bias=False):
        raise ValueError(f"weight.shape = {tuple(weight.shape)!r}: the fused kernel does not take it")
    if (x.scale is None) != (weight_scale is None):
        raise ValueError("weight_scale: given exactly with a quantised activation")
    if weight_scale is not None and weight.dtype == torch.int8:
        groups = weight.shape[0] // GROUP_ROWS
        if weight_scale.shape != (groups,):
            raise ValueError(f"weight_scale.shape = {tuple(weight_scale.shape)!r}: must be ({groups},)")
    check_mode(_mode(scale, blocks), scale, ("none", "static", "blocks"))
    out, out_scale = _launch(x.values, x.scale, weight, weight_scale, scale, blocks)
    return Activation(out, out_scale if blocks else scale)
