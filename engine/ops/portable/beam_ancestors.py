"""boundgen::beam_ancestors: which row wrote each slot of a new beam's suffix.

    out[j, r] = p if j = slot, else ancestors[j, p]        p: the row of r's parent, which wrote `slot` itself

Rows are beams of requests one after another; parents count within their request.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable.language import cdiv, jit, register, tl

_BLOCK = 256  # rows a program


@jit
def _beam_ancestors(ancestors, parents, out, rows, width, slot, BLOCK: tl.constexpr):
    """Grid (blocks of rows, slots)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    each = tl.program_id(1)
    parent = row // width * width + tl.load(parents + row, mask=row < rows, other=0)
    at = each.to(tl.int64) * rows
    before = tl.load(ancestors + at + parent, mask=row < rows, other=-1)
    tl.store(out + at + row, tl.where(each == slot, parent, before), mask=row < rows)


def _allocate(ancestors: Tensor, parents: Tensor, slot: int) -> Tensor:
    return torch.empty_like(ancestors)


def _oracle(ancestors: Tensor, parents: Tensor, slot: int) -> Tensor:
    requests, width = parents.shape
    first = torch.arange(requests, device=parents.device).unsqueeze(-1) * width
    rows = (first + parents).flatten()
    here = torch.arange(len(ancestors), device=ancestors.device).unsqueeze(-1) == slot
    return torch.where(here, rows, ancestors[:, rows])


@register("beam_ancestors", allocate=_allocate, cpu=_oracle)
def _launch(ancestors: Tensor, parents: Tensor, slot: int) -> Tensor:
    out = _allocate(ancestors, parents, slot)
    slots, rows = ancestors.shape
    wrap_triton(_beam_ancestors)[(cdiv(rows, _BLOCK), slots)](
        ancestors, parents, out, rows, parents.shape[1], slot, BLOCK=_BLOCK, num_warps=4
    )
    return out


def beam_ancestors(ancestors: Tensor, parents: Tensor, slot: int) -> Tensor:
    """ancestors int64[slots, S * W], parents int64[S, W] -> alike, of the new beams."""
    out: Tensor = _launch(ancestors.contiguous(), parents.contiguous(), slot)
    return out
