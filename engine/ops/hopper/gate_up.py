"""gate and up projections with RMSNorm's row factor and SwiGLU in the epilogue.

    r = 1 / sqrt(sum(partials) / hidden + eps)
    g, u = split((a @ w.T) * scales[0] * r)
    h = silu(g) * u                                      bf16, or e4m3(h * scales[1])

`a` is the residual stream itself (quantised or bf16); the norm's weight is folded into w's columns. `w` is [2
I, H], stored with layout.gate_up_rows. Kernel: csrc/epilogue_gate_up.cuh.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.layout import gate_up_rows, inverse
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
from engine.ops.hopper.quantise import quantise


@torch.library.custom_op("boundgen::hopper_gate_up", mutates_args=(), device_types="cuda")
def gate_up(
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    eps: float,
    output: torch.dtype,
    max_sms: int = 0,
) -> Tensor:
    """a [T, H], partials float32[T, 8], w [2 I, H], scales float32[2] -> h [T, I] of type `output`."""
    check_element("a", a.dtype)
    check_element("output", output)
    (m, k), n = a.shape, w.shape[0]
    check("a", a, (-1, -1), a.dtype)
    check("partials", partials, (m, tiles.PARTIALS), torch.float32)
    check("w", w, (-1, k), a.dtype)
    check("scales", scales, (2,), torch.float32)
    if n % 128:
        raise ValueError(f"w has {n} rows: wanted twice a multiple of 64")
    h = a.new_empty((m, n // 2), dtype=output)
    tile = tiles.choose_width(m, n, k * a.element_size(), tiles.gate_up_widths())
    codes = ELEMENT_CODES[a.dtype], ELEMENT_CODES[output]
    gemm = GemmCall(pointer(a), pointer(w), m, n, k, tile, *codes, max_sms, 1, current_stream(a))
    epilogue = GateUpParams(pointer(partials), pointer(h), pointer(scales), 1 / k, eps)
    call(library, f"gate_up_{ELEMENT_NAMES[a.dtype]}", gemm, epilogue)
    return h


@gate_up.register_fake
def _(
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    eps: float,
    output: torch.dtype,
    max_sms: int = 0,
) -> Tensor:
    return a.new_empty((a.shape[0], w.shape[0] // 2), dtype=output)


@gate_up.register_kernel("cpu")
def gate_up_reference(
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    eps: float,
    output: torch.dtype,
    max_sms: int = 0,
) -> Tensor:
    """The oracle: same arguments, plain torch."""
    r = torch.rsqrt(partials.sum(-1, keepdim=True) / a.shape[1] + eps)
    y = (a.float() @ w.float().T) * scales[0] * r
    g, u = y[:, inverse(gate_up_rows(w.shape[0] // 2)).to(w.device)].chunk(2, 1)
    h = F.silu(g) * u
    return quantise(h if output == torch.bfloat16 else h * scales[1], output)
