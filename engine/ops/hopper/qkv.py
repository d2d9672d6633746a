"""q, k and v projections with RMSNorm's row factor, bias, head norm and rope in the epilogue.

    r = 1 / sqrt(sum(partials) / hidden + eps) y = product(a, w) * r + bias v heads: y;  q, k heads:
    rope(y * n * head_weight[0 or 1]), n = 1 / sqrt(mean(y^2) + head_eps) with head_norm, else 1 rope: (y1 c -
    y2 s, y2 c + y1 s) on the halves y1, y2 of a head

head_weight[0] carries log2(e) / sqrt(head_dim), so that the attention works in powers of two and without a
scale. `w` is [(num_q + 2 num_kv) head_dim, H], stored with layout.qkv_rows, as is bias. Kernel:
csrc/epilogue_qkv.cuh.
"""

import torch
from torch import Tensor

from engine.ops.hopper import tiles
from engine.ops.hopper.layout import inverse, qkv_rows
from engine.ops.hopper.library import (
    ELEMENT_CODES,
    ELEMENT_NAMES,
    GemmCall,
    QkvParams,
    call,
    check,
    check_element,
    current_stream,
    pointer,
)
from engine.ops.hopper.products import check_scales, product


@torch.library.custom_op("boundgen::hopper_qkv", mutates_args=(), device_types="cuda")
def qkv(  # noqa: PLR0913, PLR0917 - an exported graph passes tensors and numbers, not objects
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    num_q: int,
    num_kv: int,
    eps: float,
    head_eps: float,
    max_sms: int = 0,
    row_scales: Tensor | None = None,
) -> Tensor:
    """a [T, H], partials float32[T, 8], w [N, H], scales float32[groups + 1], head_weight
    float32[2, D], bias float32[N] or None, cosines, sines bf16[P, D / 2], positions int64[T] (< P) -> bf16
    [T, N]. head_eps < 0: no head norm. row_scales float32[T]: of a in int8.
    """
    check_element("a", a.dtype)
    (m, k), head_dim = a.shape, head_weight.shape[1]
    n = (num_q + 2 * num_kv) * head_dim
    if head_dim not in (64, 128) or num_q % num_kv:
        raise ValueError(
            f"head_weight has {head_dim} columns, num_q {num_q}, num_kv {num_kv}: "
            "wanted 64 or 128, num_q % num_kv == 0"
        )
    check("a", a, (-1, -1), a.dtype)
    check("partials", partials, (m, tiles.PARTIALS), torch.float32)
    check("w", w, (n, k), a.dtype)
    check_scales(scales, w)
    if a.dtype == torch.int8:
        if row_scales is None:
            raise ValueError("row_scales is None, wanted those of a in int8")
        check("row_scales", row_scales, (m,), torch.float32)
    check("head_weight", head_weight, (2, head_dim), torch.float32)
    if bias is not None:
        check("bias", bias, (n,), torch.float32)
    check("cosines", cosines, (-1, head_dim // 2), torch.bfloat16)
    check("sines", sines, (-1, head_dim // 2), torch.bfloat16)
    check("positions", positions, (m,), torch.int64)
    out = a.new_empty((m, n), dtype=torch.bfloat16)
    tile = tiles.choose_width(m, n, k * a.element_size(), tiles.qkv_widths(head_dim))
    gemm = GemmCall(
        pointer(a), pointer(w), m, n, k, tile, ELEMENT_CODES[a.dtype], 0, max_sms, 1, current_stream(a)
    )
    tensors = (partials, out, scales, head_weight, bias, cosines, sines, positions, row_scales)
    epilogue = QkvParams(*map(pointer, tensors), 1 / k, eps, head_eps, num_q, num_kv, int(head_eps >= 0))
    call(library, f"qkv_{ELEMENT_NAMES[a.dtype]}", gemm, epilogue, head_dim)
    return out


@qkv.register_fake
def _(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    num_q: int,
    num_kv: int,
    eps: float,
    head_eps: float,
    max_sms: int = 0,
    row_scales: Tensor | None = None,
) -> Tensor:
    return a.new_empty((a.shape[0], w.shape[0]), dtype=torch.bfloat16)


@qkv.register_kernel("cpu")
def qkv_reference(  # noqa: PLR0913, PLR0917
    library: str,
    a: Tensor,
    partials: Tensor,
    w: Tensor,
    scales: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    num_q: int,
    num_kv: int,
    eps: float,
    head_eps: float,
    max_sms: int = 0,
    row_scales: Tensor | None = None,
) -> Tensor:
    """The oracle: same arguments, plain torch."""
    m, head_dim = a.shape[0], head_weight.shape[1]
    r = torch.rsqrt(partials.sum(-1, keepdim=True) / a.shape[1] + eps)
    y = product(a, w, scales, row_scales) * r
    y = y + bias if bias is not None else y
    y = y[:, inverse(qkv_rows(num_q + 2 * num_kv, head_dim)).to(w.device)].view(m, -1, head_dim)
    rotated, v = y[:, : num_q + num_kv], y[:, num_q + num_kv :]
    if head_eps >= 0:
        rotated = rotated * torch.rsqrt(rotated.square().mean(-1, keepdim=True) + head_eps)
    rotated = rotated * head_weight.repeat_interleave(torch.tensor([num_q, num_kv], device=w.device), 0)
    c, s = cosines[positions].float()[:, None], sines[positions].float()[:, None]
    lower, upper = rotated.chunk(2, -1)
    rotated = torch.cat([lower * c - upper * s, upper * c + lower * s], -1)
    return torch.cat([rotated, v], 1).reshape(m, -1).bfloat16()
