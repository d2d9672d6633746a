"""boundgen::linear_e4m3: y = x Wᵀ from 8-bit operands through the library's own GEMM (cuBLASLt), bf16 out.

    y[t, n] = (sum_k x[t, k] w[n, k]) * x_scale[t or all] * weight_scale + bias[n]

One scale a tensor runs as one GEMM with scalars; one scale a token runs row-wise. Both need sm_89 or later.
"""

import torch
from torch import Tensor

from engine.ops.portable import reference
from engine.ops.portable.language import register
from engine.ops.portable.quantised import E4M3, E4M3_MAX, MIN_SCALE, Activation


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight[N, K] of any floating type -> e4m3[N, K] and float32[1]: the matrix's largest value becomes
    448."""
    wide = weight.float()
    scale = (wide.abs().max() / E4M3_MAX).clamp_min(MIN_SCALE).reshape(1)
    return (wide / scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3), scale


def _allocate(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    return torch.empty((x.shape[0], weight.shape[0]), dtype=torch.bfloat16, device=x.device)


@register("linear_e4m3", allocate=_allocate, cpu=reference.linear_e4m3)
def _launch(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    if x_scale.dim() == 2:  # row-wise kernels want a scale a row on both sides
        weight_scale = weight_scale.expand(weight.shape[0]).contiguous().unsqueeze(0)
    return torch._scaled_mm(
        x, weight.t(), x_scale, weight_scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def linear_e4m3(x: Activation, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x e4m3[T, K] with its scale, weight e4m3[N, K], weight_scale float32[1], bias bf16[N] -> bf16[T, N].

    ValueError for an unquantised x or widths that the library does not take (multiples of 16).
    """
    if x.scale is None:
        raise ValueError("x.scale = None: linear_e4m3 takes a quantised activation")
    if weight.shape[0] % 16 != 0 or weight.shape[1] % 16 != 0:
        raise ValueError(f"weight.shape = {tuple(weight.shape)!r}: both must be multiples of 16")
    out: Tensor = _launch(x.values, x.scale, weight, weight_scale, bias)
    return out
