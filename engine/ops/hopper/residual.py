"""Output projections (o, down) with the residual addition in the epilogue.

    y        = x + (a @ w.T) * scales[0]                 float32 accumulation, y kept as bf16 x8       =
    e4m3(y * scales[1])                       of the unrounded y; empty where the next product is in bf16
    partials = sums of y^2 by tile of columns            float32 [T, 8], unused slots zero; their sum is
    RMSNorm's

`w` is stored with layout.residual_rows (o: columns in layout.attention_columns too). Kernel:
csrc/epilogue_residual.cuh.
"""

import math

import torch
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.layout import inverse, residual_rows
from engine.ops.hopper.library import (
    ELEMENT_CODES,
    ELEMENT_NAMES,
    GemmCall,
    ResidualParams,
    call,
    check,
    check_element,
    current_stream,
    pointer,
)
from engine.ops.hopper.quantise import quantise

Outputs = tuple[Tensor, Tensor, Tensor]


def _tile(rows: int, width: int, depth_bytes: int) -> int:
    widths = tiles.residual_widths(width)
    if not widths or width % 32:
        raise ValueError(f"w has {width} rows: wanted a multiple of 32, up to {tiles.PARTIALS * 256}")
    return tiles.choose_width(rows, width, depth_bytes, widths)


@torch.library.custom_op("boundgen::hopper_residual", mutates_args=(), device_types="cuda")
def residual(
    library: str, a: Tensor, w: Tensor, scales: Tensor, x: Tensor, operand: torch.dtype, max_sms: int = 0
) -> Outputs:
    """a [T, K] and w [H, K] of one element type, scales float32[2], x bf16[T, H] -> y bf16[T, H], x8,
    partials.

    operand: element type of the product that reads x8. max_sms: multiprocessors to use, 0 all.
    """
    check_element("a", a.dtype)
    (m, k), n = a.shape, w.shape[0]
    check("a", a, (-1, -1), a.dtype)
    check("w", w, (-1, k), a.dtype)
    check("scales", scales, (2,), torch.float32)
    check("x", x, (m, n), torch.bfloat16)
    y, x8, partials = _new(x, operand)
    tile = _tile(m, n, k * a.element_size())
    code = ELEMENT_CODES[a.dtype]
    gemm = GemmCall(pointer(a), pointer(w), m, n, k, tile, code, 0, max_sms, 1, current_stream(a))
    epilogue = ResidualParams(pointer(x), pointer(y), pointer(x8), pointer(partials), pointer(scales))
    call(library, f"residual_{ELEMENT_NAMES[a.dtype]}", gemm, epilogue)
    return y, x8, partials


def _new(x: Tensor, operand: torch.dtype) -> Outputs:
    x8 = x.new_empty(x.shape if operand != torch.bfloat16 else (0,), dtype=operand)
    return torch.empty_like(x), x8, x.new_empty((x.shape[0], tiles.PARTIALS), dtype=torch.float32)


@residual.register_fake
def _(
    library: str, a: Tensor, w: Tensor, scales: Tensor, x: Tensor, operand: torch.dtype, max_sms: int = 0
) -> Outputs:
    return _new(x, operand)


@residual.register_kernel("cpu")
def residual_reference(
    library: str, a: Tensor, w: Tensor, scales: Tensor, x: Tensor, operand: torch.dtype, max_sms: int = 0
) -> Outputs:
    """The oracle: same arguments (stored order and all), plain torch."""
    n = w.shape[0]
    logical = inverse(residual_rows(n)).to(w.device)
    y = x.float() + (a.float() @ w.float().T)[:, logical] * scales[0]
    tile = _tile(a.shape[0], n, a.shape[1] * a.element_size())
    slots = [y[:, start : start + tile].square().sum(-1) for start in range(0, n, tile)]
    slots += [torch.zeros_like(slots[0])] * (tiles.PARTIALS - math.ceil(n / tile))
    x8 = x.new_empty(0) if operand == torch.bfloat16 else quantise(y * scales[1], operand)
    return y.bfloat16(), x8, torch.stack(slots, 1)
