"""Plain torch oracles of our operators: one formula each, no thought of speed, any device."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Shapes as in ops.packed_attention; one dense mask over all T tokens, in float64."""
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    token = torch.arange(num_tokens, device=q.device)
    sample = torch.bucketize(token, cu_seqlens[1:-1].to(token.dtype), right=True)
    allowed = (sample[:, None] == sample[None, :]) & (token[:, None] >= token[None, :])
    keys = k.double().repeat_interleave(group, dim=1)
    values = v.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", q.double(), keys) / head_dim**0.5
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, values).to(q.dtype)
