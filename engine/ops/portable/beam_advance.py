"""boundgen::beam_advance: what the next decode step takes of the beams that were chosen.

    ids[r]    = tokens[r, step]                            the token that each beam appends now
    out[j, r] = p if j = step - 1, else ancestors[j, p]    p: the row of r's parent, which wrote slot step - 1

`ancestors` says which row wrote each slot of a beam's suffix, -1 where none did: everywhere at step 0. Rows
are beams of requests one after another; parents count within their request.
"""

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable.language import cdiv, jit, register, tl

_BLOCK = 256  # rows a program


@jit
def _beam_advance(
    ancestors, parents, tokens, ids, out, rows, width, step, LENGTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Grid (blocks of rows, slots)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    each = tl.program_id(1)
    slot = each + row * 0  # a tensor, as a mask needs
    there = row < rows
    parent = row // width * width + tl.load(parents + row, mask=there, other=0)
    at = each.to(tl.int64) * rows
    before = tl.load(ancestors + at + parent, mask=there & (slot < step), other=-1)
    tl.store(out + at + row, tl.where(slot == step - 1, parent, before), mask=there)
    if each == 0:
        chosen = tl.load(tokens + row.to(tl.int64) * LENGTH + step, mask=there, other=0)
        tl.store(ids + row, chosen, mask=there)


def _allocate(
    ancestors: Tensor | None, parents: Tensor, tokens: Tensor, slots: int, step: int
) -> tuple[Tensor, Tensor]:
    rows = parents.shape[0] * parents.shape[1]
    return parents.new_empty((rows,)), parents.new_empty((slots, rows))


def _oracle(
    ancestors: Tensor | None, parents: Tensor, tokens: Tensor, slots: int, step: int
) -> tuple[Tensor, Tensor]:
    requests, width = parents.shape
    ids = tokens[..., step].flatten().clone()
    if ancestors is None or step == 0:
        return ids, torch.full((slots, len(ids)), -1, device=ids.device)
    first = torch.arange(requests, device=parents.device).unsqueeze(-1) * width
    rows = (first + parents).flatten()
    slot = torch.arange(slots, device=ancestors.device).unsqueeze(-1)
    older = torch.where(slot < step, ancestors[:, rows], -1)
    return ids, torch.where(slot == step - 1, rows, older)


@register("beam_advance", allocate=_allocate, cpu=_oracle)
def _launch(
    ancestors: Tensor | None, parents: Tensor, tokens: Tensor, slots: int, step: int
) -> tuple[Tensor, Tensor]:
    ids, out = _allocate(ancestors, parents, tokens, slots, step)
    wrap_triton(_beam_advance)[(cdiv(ids.shape[0], _BLOCK), slots)](
        out if ancestors is None else ancestors, parents, tokens, ids, out, ids.shape[0], parents.shape[1],
        step, LENGTH=tokens.shape[2], BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return ids, out


def beam_advance(
    ancestors: Tensor | None, parents: Tensor, tokens: Tensor, slots: int, step: int
) -> tuple[Tensor, Tensor]:
    """ancestors int64[slots, S * W] of the step before, None at step 0; parents int64[S, W] and tokens
    int64[S, W, L] of the beams -> ids int64[S * W], ancestors alike."""
    found: tuple[Tensor, Tensor] = _launch(ancestors, parents.contiguous(), tokens.contiguous(), slots, step)
    return found
