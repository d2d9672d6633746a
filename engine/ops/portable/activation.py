"""boundgen::silu_mul: the gate of a SwiGLU MLP, quantised for the down projection if asked.

out[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i]       silu(g) = g / (1 + exp(-g))
"""

from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.integers import logical_column, quantise_block
from engine.ops.portable.language import jit, next_power_of_2, register, tl
from engine.ops.portable.quantised import MODES, Activation, check_mode, empty_quantised


@jit
def _silu_mul(
    gate_up, scale, out, row_scale, num_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MODE: tl.constexpr
):  # fmt: skip
    """One row a program: a per-token scale needs all of it."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if MODE == 5:
        column = column // 128 * 128 + logical_column(column % 128)
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    if MODE == 5:
        blocks: tl.constexpr = BLOCK // 128
        values, block_scale = quantise_block(tl.reshape(value, [blocks, 128]), blocks)
        block = tl.arange(0, blocks)
        at = block[:, None] * 128 + tl.arange(0, 128)[None, :]
        tl.store(out + row * WIDTH + at, values, mask=at < WIDTH)
        tl.store(row_scale + block * num_rows + row, block_scale, mask=block * 128 < WIDTH)
    elif MODE == 0:
        tl.store(out + row * WIDTH + column, value.to(out.dtype.element_ty), mask=inside)
    else:
        if MODE == 1:
            factor = 1.0 / tl.load(scale)
        else:
            token_scale = tl.maximum(tl.max(tl.abs(value), 0) / 448.0, 1e-12)
            tl.store(row_scale + row, token_scale)
            factor = 1.0 / token_scale
        quantised = tl.clamp(value * factor, -448.0, 448.0)
        tl.store(out + row * WIDTH + column, quantised.to(out.dtype.element_ty), mask=inside)


def _allocate(gate_up: Tensor, scale: Tensor | None, quantise: str) -> tuple[Tensor, Tensor]:
    return empty_quantised(gate_up, (gate_up.shape[0], gate_up.shape[1] // 2), quantise)


@register("silu_mul", allocate=_allocate, cpu=reference.silu_mul)
def _launch(gate_up: Tensor, scale: Tensor | None, quantise: str) -> tuple[Tensor, Tensor]:
    out, row_scale = _allocate(gate_up, scale, quantise)
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    block = next_power_of_2(width)
    wrap_triton(_silu_mul)[(num_rows,)](
        gate_up, out if scale is None else scale, out, row_scale, num_rows,
        WIDTH=width, BLOCK=block, MODE=MODES[quantise], num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip
    return out, row_scale


def silu_mul(gate_up: Tensor, *, quantise: str = "none", scale: Tensor | None = None) -> Activation:
    """gate_up[T, 2I] contiguous (gates first) -> [T, I]; ValueError for an odd width or a mode without its
    scale. "blocks" takes whole ones, in stored order."""
    check_mode(quantise, scale, ("none", "static", "token", "blocks"))
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 != 0:
        raise ValueError(f"gate_up.shape = {tuple(gate_up.shape)!r}: must be [T, 2I]")
    out, row_scale = _launch(gate_up, scale, quantise)
    return Activation(out, row_scale if quantise in ("token", "blocks") else scale)
