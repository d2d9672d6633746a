"""int8 values, their rounding and their exact products: what a kernel with s32 accumulators computes.

    q = clamp(round(x / scale), -128, 127)      (round half to even, as cvt.rni; cvt.pack.sat)
    y[t, n] = sum over blocks b of  a_scale[t, b] * w_scale[n] * (integer sum over the block's columns)

Sums inside a block are integers and exact in any order, so a kernel must have them bit for bit; scales are
float32 and applied after the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127.0
SURE = 1024  # products of two int8 whose sum float32 holds
MIN_SCALE = 1e-12  # a row of zeros keeps a scale that divides


def round_int8(x: Tensor, scale: Tensor) -> Tensor:
    """int8 of x / scale, saturating; scale broadcasts. The reciprocal is taken first, as kernels do."""
    return (x * (1.0 / scale)).round().clamp(-LARGEST - 1, LARGEST).to(torch.int8)


def multiply(values: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """values int8[T, K], scale float32[T or 1, B], weight int8[N, K], weight_scale float32[N]: float32[T, N].

    B blocks of K / B columns each; B = 1: one scale a row or a tensor.
    """
    blocks = scale.shape[1]
    if blocks == 1:
        return _integer_product(values, weight).float() * scale * weight_scale
    width = values.shape[1] // blocks
    total = torch.zeros(values.shape[0], weight.shape[0], device=values.device)
    for block in range(blocks):
        columns = slice(block * width, (block + 1) * width)
        sums = _integer_product(values[:, columns].contiguous(), weight[:, columns].contiguous())
        total += sums.float() * scale[:, block : block + 1]
    return total * weight_scale


def sum_in_float32(values: Tensor, weight: Tensor) -> Tensor:
    """int32[T, N] of int8[T, K] and int8[N, K], exact in any order: SURE products stay within 2^24."""
    total = torch.zeros(len(values), len(weight), dtype=torch.int32, device=values.device)
    for parts in zip(torch.split(values, SURE, 1), torch.split(weight, SURE, 1), strict=True):
        some, theirs = (part.float() for part in parts)
        total += (some @ theirs.T).int()
    return total


def _integer_product(values: Tensor, weight: Tensor) -> Tensor:
    """int32[T, N]. float64 holds every such sum exactly where the integer product does not serve."""
    if values.is_cuda:
        return sum_in_float32(values, weight)
    if values.shape[0] > 16 and values.shape[1] % 8 == 0 and weight.shape[0] % 8 == 0:
        product: Tensor = torch._int_mm(values, weight.T)
        return product
    return (values.double() @ weight.double().T).to(torch.int32)
