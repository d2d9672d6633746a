"""The layers of a packed decoder: what a model's forward is made of, and what gets exported.

Activations are [T, width] over all tokens of all samples. Formulas and casts follow transformers'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.ops.packed_attention import packed_attention

Rotation = tuple[Tensor, Tensor]  # cos[T, 1, head_dim/2], sin alike


@dataclass(frozen=True)
class Before:
    """What segments attend to beside themselves, as ops.packed_attention takes it."""

    prefixes: Tensor  # int32[S, 2]
    constant: tuple[Tensor, Tensor]  # this layer's keys and values, [P, num_kv_heads, head_dim]


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x²) + eps), the mean in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x[T, heads, head_dim]: the pair (i, i + head_dim/2) turned by the token's i-th angle."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Projections and rotation around packed attention; grouped key and value heads."""

    def __init__(self, architecture: Architecture, max_seqlen: int) -> None:
        super().__init__()
        a = architecture
        self.num_heads, self.num_kv_heads, self.head_dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.widths = [a.q_width, a.kv_width, a.kv_width]
        self.max_seqlen = max_seqlen
        self.qkv = nn.Linear(a.hidden_size, sum(self.widths), bias=a.qkv_bias)
        self.q_norm = RMSNorm(a.head_dim, a.norm_eps) if a.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(a.head_dim, a.norm_eps) if a.qk_norm else nn.Identity()

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """x[T, hidden_size] -> q[T, num_heads, head_dim], k and v[T, num_kv_heads, head_dim], rotated."""
        q, k, v = self.qkv(x).split(self.widths, dim=-1)
        q = self.q_norm(q.unflatten(-1, (self.num_heads, self.head_dim)))
        k = self.k_norm(k.unflatten(-1, (self.num_kv_heads, self.head_dim)))
        v = v.unflatten(-1, (self.num_kv_heads, self.head_dim))
        return rotate(q, rotation), rotate(k, rotation), v

    def forward(
        self, x: Tensor, rotation: Rotation, cu_seqlens: Tensor, before: Before | None = None
    ) -> Tensor:
        """x[T, hidden_size] -> [T, num_heads * head_dim], before the output projection."""
        q, k, v = self.project(x, rotation)
        given = () if before is None else (before.prefixes, before.constant)
        return packed_attention(q, k, v, cu_seqlens, self.max_seqlen, *given).flatten(-2)


class DecoderLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, architecture: Architecture, max_seqlen: int) -> None:
        super().__init__()
        a = architecture
        self.attention_norm = RMSNorm(a.hidden_size, a.norm_eps)
        self.attention = Attention(a, max_seqlen)
        self.output = nn.Linear(a.q_width, a.hidden_size, bias=a.output_bias)
        self.mlp_norm = RMSNorm(a.hidden_size, a.norm_eps)
        self.gate_up = nn.Linear(a.hidden_size, 2 * a.intermediate_size, bias=a.mlp_bias)
        self.down = nn.Linear(a.intermediate_size, a.hidden_size, bias=a.mlp_bias)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        cu_seqlens: Tensor,
        rows: Tensor | None = None,
        before: Before | None = None,
    ) -> Tensor:
        """x[T, hidden_size] -> [T, hidden_size], or only `rows` of it: all attend, only they go on."""
        attended = self.attention(self.attention_norm(x), rotation, cu_seqlens, before)
        if rows is not None:
            attended, x = attended[rows], x[rows]
        return self.after_attention(x, attended)

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's second half, from the stream before it and what its heads gathered."""
        x = x + self.output(attended)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out
