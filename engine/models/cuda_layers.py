"""The layers of a packed decoder on CUDA, built from a plan: every step one operation of engine.ops.portable.

The residual stream is x plus a `delta` that the next norm takes in, so that no addition is a pass of its own;
int8 products add x themselves, then there is none. A matrix says what its producer must emit; the producers
are norms, attention and the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.cuda_matrix import Matrix, Norm, Product
from engine.models.plan import LayerPlan
from engine.ops.portable.activation import silu_mul
from engine.ops.portable.attention import varlen_attention
from engine.ops.portable.gate_up import gate_up
from engine.ops.portable.norm import add_rms_norm
from engine.ops.portable.quantised import E4M3, Activation, Quantise
from engine.ops.portable.rotary import head_norm_rope

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Batch:
    """What every layer needs of a packed batch."""

    positions: Tensor  # int64[T]
    cu_seqlens: Tensor  # int32[S+1]
    tiles: Tensor  # of attention_tiles
    tables: tuple[Tensor, Tensor]  # rotary cos and sin
    before: tuple[Tensor, Tensor, Tensor] | None = None  # prefixes, this layer's constant keys and values


class CudaAttention(nn.Module):
    """From the normed stream to what the output projection takes."""

    def __init__(self, a: Architecture, plan: LayerPlan, inputs: Mapping[str, Quantise]) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.eps = a.num_heads, a.num_kv_heads, a.norm_eps
        self.q_scale = LOG2_E / a.head_dim**0.5
        self.qkv = Matrix((a.q_width + 2 * a.kv_width, a.hidden_size), a.qkv_bias, plan.qkv, inputs["qkv"])
        self.q_norm = Norm(a.head_dim) if a.qk_norm else None
        self.k_norm = Norm(a.head_dim) if a.qk_norm else None

    @property
    def norms(self) -> tuple[Tensor, Tensor] | None:
        """Weights of the head norms, where there are any."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm.weight, self.k_norm.weight

    def forward(self, x: Activation, batch: Batch, output: Matrix) -> Activation:
        q, k, v = head_norm_rope(
            self.qkv(x), batch.positions, batch.tables, self.norms,
            heads=self.heads, kv_heads=self.kv_heads, eps=self.eps, q_scale=self.q_scale,
        )  # fmt: skip
        return varlen_attention(
            q, k, v, batch.tiles, batch.cu_seqlens, scale=output.input_scale, before=batch.before,
            quantise="heads" if output.quantise == "heads" else "static",
        )  # fmt: skip


class CudaLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x)); in fewer passes."""

    def __init__(self, a: Architecture, plan: LayerPlan, inputs: Mapping[str, Quantise]) -> None:
        """`inputs`: Plan.inputs."""
        super().__init__()
        self.eps, self.fused = a.norm_eps, plan.fused_gate_up
        self.attention_norm = Norm(a.hidden_size)
        self.attention = CudaAttention(a, plan, inputs)
        shape = (a.hidden_size, a.q_width)
        self.output = Matrix(shape, a.output_bias, plan.output, inputs["output"], a.num_heads)
        self.mlp_norm = Norm(a.hidden_size)
        shape = (2 * a.intermediate_size, a.hidden_size)
        self.gate_up = Matrix(shape, a.mlp_bias, plan.gate_up, inputs["gate_up"])
        shape = (a.hidden_size, a.intermediate_size)
        self.down = Matrix(shape, a.mlp_bias, plan.down, inputs["down"])

    def forward(
        self, x: Tensor, delta: Tensor | None, batch: Batch, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x, delta [T, hidden_size] -> the same, or only the given rows: all attend, only they go on."""
        x, normed = self.before_attention(x, delta)
        attended = self.attention(normed, batch, self.output)
        if rows is not None:
            x, attended = x[rows], _take(attended, rows)
        x, normed = self._norm(*self.output.add(x, attended), self.mlp_norm, self.gate_up)
        return self.down.add(x, self.gate(normed))

    def before_attention(
        self, x: Tensor, delta: Tensor | Product | None, take: Tensor | None = None
    ) -> tuple[Tensor, Activation]:
        """The stream with delta in it, and its norm. `take`: the stream begins with these rows of x."""
        return self._norm(x, delta, self.attention_norm, self.attention.qkv, take)

    def after_attention(
        self, x: Tensor, attended: Activation, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor | Product | None]:
        """The layer's second half, from the stream before it and what its heads gathered, as searches take
        it: the norms make products where they may."""
        if rows is not None:
            x, attended = x[rows], _take(attended, rows)
        x, normed = self._norm(*self.output.add_later(x, attended), self.mlp_norm, self.gate_up)
        return self.down.add_later(x, self.gate(normed))

    def _norm(
        self, x: Tensor, delta: Tensor | Product | None, norm: Norm, to: Matrix, take: Tensor | None = None
    ) -> tuple[Tensor, Activation]:
        if isinstance(delta, Product):
            if to.quantise in ("none", "static"):
                return delta.add_norm(x, norm, self.eps, to.input_scale)
            delta = delta.make()
        return add_rms_norm(
            x, delta, norm.weight, self.eps, quantise=to.quantise, scale=to.input_scale, take=take
        )

    def mlp_input(self, x: Tensor) -> Activation:
        """The stream as the gate's projection takes it."""
        return self._norm(x, None, self.mlp_norm, self.gate_up)[1]

    def gate(self, x: Activation) -> Activation:
        """The normed stream -> what the down projection takes."""
        down = self.down
        if self.fused:
            weight, scale = self.gate_up.weight, self.gate_up.weight_scale
            return gate_up(x, weight, scale, scale=down.input_scale, blocks=down.quantise == "blocks")
        return silu_mul(self.gate_up(x), quantise=down.quantise, scale=down.input_scale)


def _take(x: Activation, rows: Tensor) -> Activation:
    """Some rows; through bytes, since indexing does not know 8-bit floats everywhere."""
    if x.values.dtype == E4M3:
        return Activation(x.values.view(torch.uint8)[rows].view(E4M3), x.scale)
    return Activation(x.values[rows], x.scale)
