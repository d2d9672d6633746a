"""Plain torch oracles of our operators: one formula each, no thought of speed, any device."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    prefixes: Tensor | None = None,
    constant: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Shapes as in ops.packed_attention; one dense mask over constant rows and all T tokens, in float64."""
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    token = torch.arange(num_tokens, device=q.device)
    segment = torch.bucketize(token, cu_seqlens[1:-1].to(token.dtype), right=True)
    allowed = (segment[:, None] == segment[None, :]) & (token[:, None] >= token[None, :])
    if prefixes is not None:
        parent, num_constant = prefixes[segment].unbind(-1)
        allowed |= parent[:, None] == segment[None, :]
        if constant is not None:
            row = torch.arange(len(constant[0]), device=q.device)
            allowed = torch.cat([row[None, :] < num_constant[:, None], allowed], dim=1)
            k, v = (torch.cat(both) for both in zip(constant, (k, v), strict=True))
    keys = k.double().repeat_interleave(group, dim=1)
    values = v.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", q.double(), keys) / head_dim**0.5
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, values).to(q.dtype)


def beam_attention(
    q: Tensor, k: Tensor, v: Tensor, prompt: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor],
    ancestors: Tensor, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    """Shapes as in ops.beam_attention; row by row, its keys gathered one after another, in float64."""
    borders, out = cu_seqlens.tolist(), torch.empty_like(q)
    beams, group = len(q) // (len(borders) - 1), q.shape[1] // k.shape[1]
    for row in range(len(q)):
        start, stop = borders[row // beams : row // beams + 2]
        slots = [(j, place) for j, place in enumerate(ancestors[:, row].tolist()) if place >= 0]
        keys, values = (
            torch.cat((old[start:stop], *(stored[slot][None] for slot in slots), new[row][None]))
            .double()
            .repeat_interleave(group, dim=1)
            for old, stored, new in zip(prompt, suffix, (k, v), strict=True)
        )
        weights = (torch.einsum("hd,lhd->hl", q[row].double(), keys) / q.shape[-1] ** 0.5).softmax(-1)
        out[row] = torch.einsum("hl,lhd->hd", weights, values).to(q.dtype)
    return out
