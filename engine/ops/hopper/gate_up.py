"""gate and up projections with RMSNorm's row factor and SwiGLU in the epilogue.

    r = 1 / sqrt(sum(partials) / hidden + eps)
    g, u = split(product(a, w) * r)                      see products.py
    h = silu(g) * u                                      bf16, or e4m3(h * factor)
    or int8(z / s), z: 32-point Hadamard of h, s: a 127th of the largest |z| of a row and 128 columns

`a` is the residual stream itself (quantised or bf16); the norm's weight is folded into w's columns. `w` is [2
I, H], stored with layout.gate_up_rows; for int8 results with layout.hadamard_rows, and they come in the order
of layout.hadamard_columns. Kernel: csrc/epilogue_gate_up.cuh.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.layout import gate_up_rows, hadamard_columns, hadamard_rows, inverse
from engine.ops.hopper.library import (
    ELEMENT_CODES,
    ELEMENT_NAMES,
    GateUpParams,
    GemmCall,
    call,
    check,
    check_element,
    current_stream,
    pointer,
)
from engine.ops.hopper.products import BLOCK_COLUMNS, check_scales, product
from engine.ops.hopper.quantise import HADAMARD, LARGEST, MIN_SCALE, quantise

Outputs = tuple[Tensor, Tensor]


@torch.library.custom_op("boundgen::hopper_gate_up", mutates_args=(), device_types="cuda")
def gate_up(  # noqa: PLR0913, PLR0917 - an exported graph passes tensors and numbers, not objects
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    eps: float,
    output: torch.dtype,
    max_sms: int = 0,
    row_scales: Tensor | None = None,
) -> Outputs:
    """a [T, H], partials float32[T, 8], w [2 I, H], scales float32[groups + 1] (groups of w's stored rows),
    row_scales float32[T] of a in int8 -> h [T, I] of type `output`, its block_scales float32[I / 128, T] (of
    int8, else empty).
    """
    check_element("a", a.dtype)
    check_element("output", output)
    (m, k), n = a.shape, w.shape[0]
    check("a", a, (-1, -1), a.dtype)
    check("partials", partials, (m, tiles.PARTIALS), torch.float32)
    check("w", w, (-1, k), a.dtype)
    check_scales(scales, w)
    blocks, multiple = output == torch.int8, 256 if torch.int8 in (a.dtype, output) else 128
    if n % multiple:
        raise ValueError(f"w has {n} rows: wanted twice a multiple of {multiple // 2}")
    if (a.dtype, output) == (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"output is {output}, a {a.dtype}: no kernel does that")
    if a.dtype == torch.int8:
        if row_scales is None:
            raise ValueError("row_scales is None, wanted those of a in int8")
        check("row_scales", row_scales, (m,), torch.float32)
    h, block_scales = _new(a, n // 2, output)
    tile = tiles.choose_width(m, n, k * a.element_size(), tiles.gate_up_widths(blocks))
    codes = ELEMENT_CODES[a.dtype], ELEMENT_CODES[output]
    gemm = GemmCall(pointer(a), pointer(w), m, n, k, tile, *codes, max_sms, 1, current_stream(a))
    epilogue = GateUpParams(*map(pointer, (partials, h, scales, row_scales, block_scales)), 1 / k, eps, m)
    call(library, f"gate_up_{ELEMENT_NAMES[a.dtype]}", gemm, epilogue)
    return h, block_scales


def _new(a: Tensor, width: int, output: torch.dtype) -> Outputs:
    blocks = (width // BLOCK_COLUMNS, a.shape[0]) if output == torch.int8 else (0,)
    return a.new_empty((a.shape[0], width), dtype=output), a.new_empty(blocks, dtype=torch.float32)


@gate_up.register_fake
def _(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    eps: float,
    output: torch.dtype,
    max_sms: int = 0,
    row_scales: Tensor | None = None,
) -> Outputs:
    return _new(a, w.shape[0] // 2, output)


@gate_up.register_kernel("cpu")
def gate_up_reference(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    eps: float,
    output: torch.dtype,
    max_sms: int = 0,
    row_scales: Tensor | None = None,
) -> Outputs:
    """The oracle: same arguments, plain torch."""
    r = torch.rsqrt(partials.sum(-1, keepdim=True) / a.shape[1] + eps)
    y = product(a, w, scales, row_scales, paired=True) * r
    width = w.shape[0] // 2
    order = hadamard_rows(width) if output == torch.int8 else gate_up_rows(width, output)
    g, u = y[:, inverse(order).to(w.device)].chunk(2, 1)
    h = F.silu(g) * u
    if output == torch.int8:
        return quantise_blocks(h)
    values = quantise(h if output == torch.bfloat16 else h * scales[-1], output)
    return values, h.new_empty(0)


def quantise_blocks(h: Tensor) -> Outputs:
    """h float32[T, I] -> int8[T, I] in the order of layout.hadamard_columns, block_scales float32[I / 128,
    T]. The transform adds in the kernel's order.
    """
    z = h.reshape(len(h), -1, HADAMARD)
    for distance in (1, 2, 4, 8, 16):
        low, high = z.reshape(len(h), -1, HADAMARD // (2 * distance), 2, distance).unbind(3)
        z = torch.stack([low + high, low - high], 3).reshape(len(h), -1, HADAMARD)
    blocks = z.reshape(len(h), -1, BLOCK_COLUMNS)
    peak = blocks.abs().amax(-1, keepdim=True).clamp_min(MIN_SCALE)
    values = quantise(blocks * (LARGEST[torch.int8] / peak), torch.int8).flatten(1)
    scales = peak.squeeze(-1) / (LARGEST[torch.int8] * HADAMARD**0.5)
    return values[:, hadamard_columns(h.shape[1]).to(h.device)], scales.T.contiguous()
