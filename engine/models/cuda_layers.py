"""The layers of a packed decoder on CUDA, built from a plan: every step one operation of engine.ops.portable.

The residual stream is x plus a `delta` that the next norm takes in, so that no addition is a pass of its own.
A matrix says what its producer must emit; the producers are norms, attention and the gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.architecture import Architecture
from engine.models.plan import LayerPlan, Precision, Scaling
from engine.models.small_vectors import stored_shape, vector
from engine.ops.portable.activation import silu_mul
from engine.ops.portable.attention import varlen_attention
from engine.ops.portable.gate_up import gate_up
from engine.ops.portable.linear import linear_e4m3
from engine.ops.portable.norm import add_rms_norm
from engine.ops.portable.quantise import quantise_rows
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


class Matrix(nn.Module):
    """One weight [out, in] in its planned precision; `quantise` is what its input must come as."""

    weight: Tensor
    bias: Tensor | None
    weight_scales: Tensor | None
    input_scales: Tensor | None

    def __init__(self, shape: tuple[int, int], bias: bool, precision: Precision, scaling: Scaling) -> None:
        super().__init__()
        self.quantise: Quantise = "none" if precision == "bf16" else scaling
        narrow = precision == "fp8"
        self.register_buffer("weight", torch.empty(shape, dtype=E4M3 if narrow else torch.bfloat16))
        self.register_buffer("bias", torch.empty(shape[0], dtype=torch.bfloat16) if bias else None)
        scales = torch.empty(stored_shape(1))
        self.register_buffer("weight_scales", scales if narrow else None)
        self.register_buffer("input_scales", scales.clone() if self.quantise == "static" else None)

    @property
    def weight_scale(self) -> Tensor | None:
        """float32[1]."""
        return None if self.weight_scales is None else vector(self.weight_scales)

    @property
    def input_scale(self) -> Tensor | None:
        """float32[1], where it is known beforehand."""
        return None if self.input_scales is None else vector(self.input_scales)

    def forward(self, x: Activation) -> Tensor:
        scale = self.weight_scale
        if scale is None:
            return F.linear(x.values, self.weight, self.bias)
        return linear_e4m3(x, self.weight, scale, self.bias)

    def fit(self, x: Activation) -> Activation:
        """x as this matrix takes it: a producer that saw only parts of a row leaves the row's scale to be
        found."""
        return quantise_rows(x.values) if self.quantise == "token" and x.scale is None else x


class Norm(nn.Module):
    """The weight of an RMSNorm; the operation is its caller's."""

    weight: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(width, dtype=torch.bfloat16))


class CudaAttention(nn.Module):
    """From the normed stream to what the output projection takes."""

    def __init__(self, a: Architecture, plan: LayerPlan, scaling: Scaling) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.eps = a.num_heads, a.num_kv_heads, a.norm_eps
        self.q_scale = LOG2_E / a.head_dim**0.5
        self.qkv = Matrix((a.q_width + 2 * a.kv_width, a.hidden_size), a.qkv_bias, plan.qkv, scaling)
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
            q, k, v, batch.tiles, batch.cu_seqlens, scale=output.input_scale, before=batch.before
        )


class CudaLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x)); in fewer passes."""

    def __init__(self, a: Architecture, plan: LayerPlan, scaling: Scaling) -> None:
        super().__init__()
        self.eps, self.fused = a.norm_eps, plan.fused_gate_up
        self.attention_norm = Norm(a.hidden_size)
        self.attention = CudaAttention(a, plan, scaling)
        self.output = Matrix((a.hidden_size, a.q_width), a.output_bias, plan.output, scaling)
        self.mlp_norm = Norm(a.hidden_size)
        self.gate_up = Matrix((2 * a.intermediate_size, a.hidden_size), a.mlp_bias, plan.gate_up, scaling)
        self.down = Matrix((a.hidden_size, a.intermediate_size), a.mlp_bias, plan.down, scaling)

    def forward(
        self, x: Tensor, delta: Tensor | None, batch: Batch, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x, delta [T, hidden_size] -> the same, or only the given rows: all attend, only they go on."""
        x, normed = self.before_attention(x, delta)
        return self.after_attention(x, self.attention(normed, batch, self.output), rows)

    def before_attention(
        self, x: Tensor, delta: Tensor | None, take: Tensor | None = None
    ) -> tuple[Tensor, Activation]:
        """The stream with delta in it, and its norm. `take`: the stream begins with these rows of x."""
        return self._norm(x, delta, self.attention_norm, self.attention.qkv, take)

    def after_attention(
        self, x: Tensor, attended: Activation, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The layer's second half, from the stream before it and what its heads gathered."""
        if rows is not None:
            x, attended = x[rows], _take(attended, rows)
        x, normed = self._norm(x, self.output(self.output.fit(attended)), self.mlp_norm, self.gate_up)
        return x, self.down(self.down.fit(self.gate(normed)))

    def _norm(
        self, x: Tensor, delta: Tensor | None, norm: Norm, to: Matrix, take: Tensor | None = None
    ) -> tuple[Tensor, Activation]:
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
            return gate_up(x, self.gate_up.weight, self.gate_up.weight_scale, scale=down.input_scale)
        return silu_mul(self.gate_up(x), quantise=down.quantise, scale=down.input_scale)


def _take(x: Activation, rows: Tensor) -> Activation:
    """Some rows; through bytes, since indexing does not know 8-bit floats everywhere."""
    if x.values.dtype == E4M3:
        return Activation(x.values.view(torch.uint8)[rows].view(E4M3), x.scale)
    return Activation(x.values[rows], x.scale)
