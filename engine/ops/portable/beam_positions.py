"""boundgen::beam_positions: where each beam's tokens stand after its prompt, of all decode steps at once.

    out[j, s * width + b] = length of prompt s + j

Rows of `out` begin at whole multiples of 16 bytes, as kernels like them.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable.language import cdiv, jit, register, tl

_BLOCK = 256  # rows a program
_STEP = 2  # entries of 16 bytes


@jit
def _beam_positions(cu_seqlens, out, rows, width, stride, BLOCK: tl.constexpr):
    """Grid (blocks of rows, slots)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.program_id(1)
    prompt = row // width
    start = tl.load(cu_seqlens + prompt, mask=row < rows, other=0)
    stop = tl.load(cu_seqlens + prompt + 1, mask=row < rows, other=0)
    tl.store(out + slot * stride + row, (stop - start + slot).to(tl.int64), mask=row < rows)


def _allocate(cu_seqlens: Tensor, slots: int, width: int) -> Tensor:
    rows = (cu_seqlens.shape[0] - 1) * width
    shape = (slots, cdiv(rows, _STEP) * _STEP)
    return torch.empty(shape, dtype=torch.int64, device=cu_seqlens.device)


def _oracle(cu_seqlens: Tensor, slots: int, width: int) -> Tensor:
    out = _allocate(cu_seqlens, slots, width)
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).long().repeat_interleave(width)
    out[:, : len(lengths)] = lengths + torch.arange(slots, device=out.device).unsqueeze(-1)
    return out


@register("beam_positions", allocate=_allocate, cpu=_oracle)
def _launch(cu_seqlens: Tensor, slots: int, width: int) -> Tensor:
    out = _allocate(cu_seqlens, slots, width)
    rows = (cu_seqlens.shape[0] - 1) * width
    wrap_triton(_beam_positions)[(cdiv(rows, _BLOCK), slots)](
        cu_seqlens, out, rows, width, out.shape[1], BLOCK=_BLOCK, num_warps=4
    )
    return out


def beam_positions(cu_seqlens: Tensor, slots: int, width: int) -> Tensor:
    """cu_seqlens int32[S+1] -> int64[slots, S * width], rows apart by at least that many."""
    rows = (cu_seqlens.shape[0] - 1) * width
    out: Tensor = _launch(cu_seqlens, slots, width)
    return out[:, :rows]
