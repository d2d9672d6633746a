"""Output projections (o, down) with the residual addition in the epilogue.

    y        = x + product(a, w)                         float32, kept as bf16; see products.py
    x8       = e4m3(y * factor)                          of the unrounded y; empty where bf16 reads it
               or int8(y * f), f = factor / rms(x)       the row's length before the addition stands for
    row_scales = 1 / f                                   the one after it (int8 alone)
    partials = sums of y^2 by tile of columns            float32 [T, 8], unused slots zero; their sum is
    RMSNorm's

`w` is stored with layout.residual_rows (o: columns in layout.attention_columns too; down in int8:
layout.hadamard_columns). Kernel: csrc/epilogue_residual.cuh.
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
from engine.ops.hopper.products import BLOCK_COLUMNS, check_scales, has_factor, product
from engine.ops.hopper.quantise import quantise

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]


def _tile(rows: int, width: int, depth_bytes: int) -> int:
    widths = tiles.residual_widths(width)
    if not widths or width % 32:
        raise ValueError(f"w has {width} rows: wanted a multiple of 32, up to {tiles.PARTIALS * 256}")
    return tiles.choose_width(rows, width, depth_bytes, widths)


@torch.library.custom_op("boundgen::hopper_residual", mutates_args=(), device_types="cuda")
def residual(  # noqa: PLR0913, PLR0917 - an exported graph passes tensors and numbers, not objects
    library: str,
    a: Tensor,
    w: Tensor,
    scales: Tensor,
    x: Tensor,
    operand: torch.dtype,
    max_sms: int = 0,
    block_scales: Tensor | None = None,
    before: Tensor | None = None,
    eps: float = 0.0,
) -> Outputs:
    """a [T, K] and w [H, K] of one element type, scales float32[groups + 1], x bf16[T, H] -> y bf16[T, H],
    x8, partials, row_scales float32[T] (or empty).

    operand: element type of the product that reads x8. max_sms: multiprocessors to use, 0 all. block_scales
    float32[K / 128, T]: of a in int8, without it the scale of a is in w's. before: partials of x, and eps:
    RMSNorm's, for operand int8.
    """
    check_element("a", a.dtype)
    (m, k), n = a.shape, w.shape[0]
    check("a", a, (-1, -1), a.dtype)
    check("w", w, (-1, k), a.dtype)
    check_scales(scales, w)
    check("x", x, (m, n), torch.bfloat16)
    if (a.dtype, operand) == (torch.float8_e4m3fn, torch.int8):
        raise ValueError(f"operand is {operand}, a {a.dtype}: no kernel does that")
    if operand != torch.bfloat16 and not has_factor(scales, w):
        raise ValueError(f"scales has {scales.shape[0]} values: wanted a factor too, for operand {operand}")
    if block_scales is not None:
        if a.dtype != torch.int8 or k % BLOCK_COLUMNS:
            raise ValueError(f"block_scales: a is {tuple(a.shape)} {a.dtype}, wanted int8 and whole blocks")
        check("block_scales", block_scales, (k // BLOCK_COLUMNS, m), torch.float32)
    if operand == torch.int8:
        if before is None or eps <= 0:
            raise ValueError(f"before, eps = {eps}: operand int8 wants the sums of x and a positive eps")
        check("before", before, (m, tiles.PARTIALS), torch.float32)
    y, x8, partials, row_scales = _new(x, operand)
    tile = _tile(m, n, k * a.element_size())
    codes = ELEMENT_CODES[a.dtype], ELEMENT_CODES[operand]
    gemm = GemmCall(pointer(a), pointer(w), m, n, k, tile, *codes, max_sms, 1, current_stream(a))
    tensors = (x, y, x8, partials, scales, before, row_scales, block_scales)
    call(
        library,
        f"residual_{ELEMENT_NAMES[a.dtype]}",
        gemm,
        ResidualParams(*map(pointer, tensors), 1 / n, eps, m),
    )
    return y, x8, partials, row_scales


def _new(x: Tensor, operand: torch.dtype) -> Outputs:
    x8 = x.new_empty(x.shape if operand != torch.bfloat16 else (0,), dtype=operand)
    row_scales = x.new_empty(x.shape[0] if operand == torch.int8 else 0, dtype=torch.float32)
    return torch.empty_like(x), x8, x.new_empty((x.shape[0], tiles.PARTIALS), dtype=torch.float32), row_scales


@residual.register_fake
def _(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    w: Tensor,
    scales: Tensor,
    x: Tensor,
    operand: torch.dtype,
    max_sms: int = 0,
    block_scales: Tensor | None = None,
    before: Tensor | None = None,
    eps: float = 0.0,
) -> Outputs:
    return _new(x, operand)


@residual.register_kernel("cpu")
def residual_reference(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    w: Tensor,
    scales: Tensor,
    x: Tensor,
    operand: torch.dtype,
    max_sms: int = 0,
    block_scales: Tensor | None = None,
    before: Tensor | None = None,
    eps: float = 0.0,
) -> Outputs:
    """The oracle: same arguments (stored order and all), plain torch."""
    n = w.shape[0]
    logical = inverse(residual_rows(n)).to(w.device)
    y = x.float() + product(a, w, scales, block_scales=block_scales)[:, logical]
    tile = _tile(a.shape[0], n, a.shape[1] * a.element_size())
    slots = [y[:, start : start + tile].square().sum(-1) for start in range(0, n, tile)]
    slots += [torch.zeros_like(slots[0])] * (tiles.PARTIALS - math.ceil(n / tile))
    x8, row_scales = x.new_empty(0, dtype=operand), x.new_empty(0, dtype=torch.float32)
    if operand == torch.int8:
        assert before is not None
        factor = scales[-1] * torch.rsqrt(before.sum(-1) / n + eps)
        x8, row_scales = quantise(y * factor[:, None], operand), 1 / factor
    elif operand != torch.bfloat16:
        x8 = quantise(y * scales[-1], operand)
    return y.bfloat16(), x8, torch.stack(slots, 1), row_scales
