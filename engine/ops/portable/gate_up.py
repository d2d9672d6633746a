"""boundgen::gate_up: the first half of a SwiGLU MLP in one kernel, quantised for the down projection if
asked.

    out[t, i] = silu(x[t] · w[i]) * (x[t] · w[I + i])

Saves writing and reading [T, 2I]: at T=4096, H=1024, I=3072 in e4m3 47 us against 62 for GEMM and gate
(H200). Two accumulators of one tile share the rows of x. Rows beyond T are read from the last one and not
stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.language import capability, cdiv, jit, register, tl
from engine.ops.portable.quantised import Activation, empty_quantised


@dataclass(frozen=True)
class GateUpTile:
    """`columns` of gates and as many of ups; sizes in elements."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def choose_tile(width: int, quantised: bool, arch: int) -> GateUpTile:
    """The one configuration for a hidden size, by measurement on an H200; a multiple of 64 is needed."""
    if arch < 90:  # two accumulators of 128 x 128 do not fit the registers of older tensor cores
        return GateUpTile(128, 64, 64, 8, 3)
    if quantised:
        return GateUpTile(128, 128, 128, 8, 3) if width % 128 == 0 else GateUpTile(128, 128, 64, 8, 4)
    return GateUpTile(128, 128, 64, 8, 3)


def serves_gate_up(hidden_size: int, intermediate_size: int, bias: bool) -> bool:
    """Whether the fused kernel takes a layer's shape; else the projection and silu_mul run apart."""
    return hidden_size % 64 == 0 and intermediate_size % 128 == 0 and not bias


@jit
def _gate_up(
    x, x_scale, weight, weight_scale, scale, out, num_rows,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    DEPTH: tl.constexpr, SWIZZLE: tl.constexpr, PER_TOKEN: tl.constexpr, E4M3_IN: tl.constexpr,
    E4M3_OUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row_tiles = tl.cdiv(num_rows, ROWS)
    column_tiles: tl.constexpr = HALF // COLS
    # SWIZZLE row tiles go through all columns together, so that both operands stay in L2
    first = program // (SWIZZLE * column_tiles) * SWIZZLE
    in_group = tl.minimum(row_tiles - first, SWIZZLE)
    row_tile = first + program % (SWIZZLE * column_tiles) % in_group
    column_tile = program % (SWIZZLE * column_tiles) // in_group
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
    wrap_triton(_gate_up)[(cdiv(x.shape[0], tile.rows) * (half // tile.columns),)](
        x, out if x_scale is None else x_scale, weight, out if weight_scale is None else weight_scale,
        out if scale is None else scale, out, x.shape[0],
        WIDTH=width, HALF=half, ROWS=tile.rows, COLS=tile.columns, DEPTH=tile.depth, SWIZZLE=8,
        PER_TOKEN=x_scale is not None and x_scale.dim() == 2, E4M3_IN=x_scale is not None,
        E4M3_OUT=scale is not None, STAGES=tile.stages, num_warps=tile.warps,
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
