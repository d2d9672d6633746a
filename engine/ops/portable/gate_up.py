"""boundgen::gate_up: the first half of a SwiGLU MLP in one kernel, quantised for the down projection if
asked.

    out[t, i] = silu(x[t] · w[i]) * (x[t] · w[I + i])

Saves writing and reading [T, 2I]: at T=4096, H=1024, I=3072 in e4m3 47 us against 62 for GEMM and gate
(H200). Two accumulators of one tile share the rows of x. Rows beyond T are read from the last one and not
stored.

A tile of 128 x 128 takes a multiprocessor's tensor cores 4 us in e4m3 at H=896, and 100 rows have 38 of them.
So where tiles of half as many rows all run at once, those are taken: 7 us instead of 10 (I=4864, H200).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.language import capability, cdiv, jit, register, tl
from engine.ops.portable.quantised import Activation, empty_quantised

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


def choose_tile(width: int, quantised: bool, arch: int) -> GateUpTile:
    """The one configuration for a hidden size, by measurement on an H200; a multiple of 64 is needed."""
    if arch < 90:  # two accumulators of 128 x 128 do not fit the registers of older tensor cores
        return GateUpTile(128, 64, 64, 8, 3, 0, 0)
    if quantised and width % 128 == 0:
        return GateUpTile(128, 128, 128, 8, 3, 64, 4)
    if quantised:
        return GateUpTile(128, 128, 64, 8, 4, 64, 6)
    return GateUpTile(128, 128, 64, 8, 3, 64, 4)


def serves_gate_up(hidden_size: int, intermediate_size: int, bias: bool) -> bool:
    """Whether the fused kernel takes a layer's shape; else the projection and silu_mul run apart."""
    return hidden_size % 64 == 0 and intermediate_size % 128 == 0 and not bias


@jit
def _gate_up_tile(
    x, x_scale, weight, weight_scale, scale, out, num_rows, row_tile, column_tile,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, PER_TOKEN: tl.constexpr, E4M3_IN: tl.constexpr, E4M3_OUT: tl.constexpr,
):  # fmt: skip
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLS + tl.arange(0, COLS)
    k = tl.arange(0, DEPTH)
    x_at = x + tl.minimum(row, num_rows - 1)[:, None] * WIDTH + k[None, :]
    gate_at = weight + column[:, None] * WIDTH + k[None, :]
    up_at = gate_at + HALF * WIDTH
    gate = tl.zeros([ROWS, COLS], tl.float32)
    up = tl.zeros([ROWS, COLS], tl.float32)
    for at in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
        rows = tl.load(x_at + at)
        gate = tl.dot(rows, tl.load(gate_at + at).T, gate)
        up = tl.dot(rows, tl.load(up_at + at).T, up)
    if E4M3_IN:
        factor = tl.load(weight_scale)
        if PER_TOKEN:
            row_factor = factor * tl.load(x_scale + tl.minimum(row, num_rows - 1))
            gate *= row_factor[:, None]
            up *= row_factor[:, None]
        else:
            factor *= tl.load(x_scale)
            gate *= factor
            up *= factor
    value = gate / (1.0 + tl.exp(-gate)) * up
    if E4M3_OUT:
        value = tl.clamp(value * (1.0 / tl.load(scale)), -448.0, 448.0)
    target = out + row[:, None] * HALF + column[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=(row < num_rows)[:, None])


@jit
def _gate_up(
    x, x_scale, weight, weight_scale, scale, out, num_rows,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    SWIZZLE: tl.constexpr, PER_TOKEN: tl.constexpr, E4M3_IN: tl.constexpr, E4M3_OUT: tl.constexpr,
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
                    x, x_scale, weight, weight_scale, scale, out, num_rows, program % few_tiles,
                    program // few_tiles, WIDTH, HALF, FEW_ROWS, COLS, DEPTH, FEW_STAGES, PER_TOKEN, E4M3_IN,
                    E4M3_OUT,
                )  # fmt: skip
    # SWIZZLE row tiles go through all columns together, so that both operands stay in L2
    first = program // (SWIZZLE * column_tiles) * SWIZZLE
    in_group = tl.minimum(tl.cdiv(num_rows, ROWS) - first, SWIZZLE)
    if (in_group > 0) & (few == 0):
        row_tile = first + program % (SWIZZLE * column_tiles) % in_group
        column_tile = program % (SWIZZLE * column_tiles) // in_group
        if column_tile < column_tiles:
            _gate_up_tile(
                x, x_scale, weight, weight_scale, scale, out, num_rows, row_tile, column_tile,
                WIDTH, HALF, ROWS, COLS, DEPTH, STAGES, PER_TOKEN, E4M3_IN, E4M3_OUT,
            )  # fmt: skip


def _allocate(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, scale: Tensor | None
) -> Tensor:
    shape = (x.shape[0], weight.shape[0] // 2)
    if scale is not None:
        return empty_quantised(x, shape, "static")[0]
    return torch.empty(shape, dtype=x.dtype if x_scale is None else torch.bfloat16, device=x.device)


@register("gate_up", allocate=_allocate, cpu=reference.gate_up)
def _launch(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor | None, scale: Tensor | None
) -> Tensor:
    out = _allocate(x, x_scale, weight, weight_scale, scale)
    width, half = weight.shape[1], weight.shape[0] // 2
    tile = choose_tile(width, x_scale is not None, capability(x))
    wrap_triton(_gate_up)[(tile.programs(x.shape[0], half),)](
        x, out if x_scale is None else x_scale, weight, out if weight_scale is None else weight_scale,
        out if scale is None else scale, out, x.shape[0],
        WIDTH=width, HALF=half, ROWS=tile.rows, COLS=tile.columns, DEPTH=tile.depth, SWIZZLE=8,
        PER_TOKEN=x_scale is not None and x_scale.dim() == 2, E4M3_IN=x_scale is not None,
        E4M3_OUT=scale is not None, STAGES=tile.stages, FEW_ROWS=tile.few_rows,
        FEW_TILES=tile.few_tiles(half), FEW_STAGES=tile.few_stages, num_warps=tile.warps,
    )  # fmt: skip
    return out


def gate_up(
    x: Activation, weight: Tensor, weight_scale: Tensor | None = None, *, scale: Tensor | None = None
) -> Activation:
    """x[T, H] bf16 or e4m3 with its scale, weight[2I, H] of the same type, gates first -> [T, I].

    scale float32[1]: e4m3 of out / scale, else bf16. ValueError for a shape that serves_gate_up refuses.
    """
    if not serves_gate_up(weight.shape[1], weight.shape[0] // 2, bias=False):
        raise ValueError(f"weight.shape = {tuple(weight.shape)!r}: the fused kernel does not take it")
    if (x.scale is None) != (weight_scale is None):
        raise ValueError("weight_scale: given exactly with a quantised activation")
    return Activation(_launch(x.values, x.scale, weight, weight_scale, scale), scale)
