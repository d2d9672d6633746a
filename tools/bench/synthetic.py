"""Random decoder layers of the supported models' shapes, a plain float32 layer beside them, and sample
lengths.

Contract: deterministic by seed; nothing here knows how a kernel works. The plain layer is the reference of
whole-layer tests and calibrates the static activation factors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.ops.hopper.quantise import LARGEST
from engine.ops.hopper.supports import LayerShape
from engine.ops.hopper.weights import Factors, LayerSource, factor

GROWTH = 1.5  # of a row in one step, at most


@dataclass(frozen=True)
class ModelShape:
    """A model of equal layers."""

    layer: LayerShape
    num_layers: int
    rope_base: float


MODELS = {
    "qwen3-0.6b": ModelShape(LayerShape(1024, 3072, 16, 8, 128, head_norm=True), 28, 1e6),
    "qwen2.5-0.5b": ModelShape(LayerShape(896, 4864, 14, 2, 64, bias=True), 24, 1e6),
    "qwen2.5-1.5b": ModelShape(LayerShape(1536, 8960, 12, 2, 128, bias=True), 28, 1e6),
    "smollm2-135m": ModelShape(LayerShape(576, 1536, 9, 3, 64, eps=1e-5), 30, 1e5),
    "smollm2-360m": ModelShape(LayerShape(960, 2560, 15, 5, 64, eps=1e-5), 32, 1e5),
}


def random_source(shape: LayerShape, seed: int, device: str = "cpu") -> LayerSource:
    """Weights whose products keep the stream's size, norms and biases that matter."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, columns: int, gain: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator, device=device) * (gain / math.sqrt(columns))

    def around_one(width: int) -> Tensor:
        return torch.rand(width, generator=generator, device=device) + 0.5

    heads = shape.num_q * shape.head_dim
    bias = torch.randn(shape.qkv_width, generator=generator, device=device) * 0.3 if shape.bias else None
    norms = (around_one(shape.head_dim), around_one(shape.head_dim)) if shape.head_norm else (None, None)
    return LayerSource(
        qkv=normal(shape.qkv_width, shape.hidden, 1.0),
        o=normal(shape.hidden, heads, 0.9),
        gate_up=normal(2 * shape.intermediate, shape.hidden, 1.0),
        down=normal(shape.hidden, shape.intermediate, 1.0),
        input_norm=around_one(shape.hidden),
        post_norm=around_one(shape.hidden),
        bias=bias,
        q_norm=norms[0],
        k_norm=norms[1],
    )


def rope_tables(head_dim: int, base: float, num: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """cosines, sines bf16[num, head_dim / 2]."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.outer(torch.arange(num, device=device).float(), frequencies)
    return angles.cos().bfloat16().contiguous(), angles.sin().bfloat16().contiguous()


@dataclass(frozen=True)
class Trace:
    """A plain layer's result [T, H], the largest activation before each product; for int8, that of a row over
    its root mean square, and of each head of the attention's output.
    """

    y: Tensor
    largest: dict[str, float]
    peaks: dict[str, float]
    heads: Tensor

    def factors(self, precision: dict[str, torch.dtype]) -> Factors:
        """Static factors of this calibration; int8 leaves room for a row to grow in one step."""
        chosen: dict[str, Any] = {name: factor(v, precision[name]) for name, v in self.largest.items()}
        for name, element in precision.items():
            if element == torch.int8:
                chosen[name] = LARGEST[element] / (GROWTH * self.peaks[name]) if name in self.peaks else 1.0
        if precision["o"] == torch.int8:
            chosen["o"] = LARGEST[torch.int8] / self.heads
        return Factors(**chosen)


def _norm(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def plain_layer(
    shape: LayerShape, source: LayerSource, x: Tensor, lengths: Sequence[int], rope: tuple[Tensor, Tensor]
) -> Trace:
    """A pre-norm decoder layer in float32, sample by sample: x float32[sum(lengths), H]; rope [P, D / 2]."""
    d, tokens = shape.head_dim, x.shape[0]
    y = _norm(x, source.input_norm, shape.eps) @ source.qkv.T
    y = (y if source.bias is None else y + source.bias).view(tokens, -1, d)
    q, k, v = y[:, : shape.num_q], y[:, shape.num_q : -shape.num_kv], y[:, -shape.num_kv :]
    if source.q_norm is not None and source.k_norm is not None:
        q, k = _norm(q, source.q_norm, shape.eps), _norm(k, source.k_norm, shape.eps)
    positions = torch.cat([torch.arange(n) for n in lengths]).to(x.device)
    c, s = (table[positions].float()[:, None] for table in rope)

    def rotate(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    q, k = rotate(q), rotate(k)
    ratio, attended, start = shape.num_q // shape.num_kv, [], 0
    for n in lengths:
        rows = slice(start, start + n)
        keys, values = (t[rows].repeat_interleave(ratio, 1).transpose(0, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q[rows].transpose(0, 1), keys, values, is_causal=True)
        attended.append(o.transpose(0, 1).reshape(n, -1))
        start += n
    a = torch.cat(attended)
    middle = x + a @ source.o.T
    gate, up = (_norm(middle, source.post_norm, shape.eps) @ source.gate_up.T).chunk(2, 1)
    h = F.silu(gate) * up
    points = {"qkv": x, "o": a, "gate_up": middle, "down": h}
    largest = {name: t.abs().max().item() for name, t in points.items()}
    peaks = {name: _norm(points[name], 1.0, shape.eps).abs().max().item() for name in ("qkv", "gate_up")}
    heads = a.view(tokens, shape.num_q, d).abs().amax((0, 2)).clamp_min(1e-6)
    return Trace(middle + h @ source.down.T, largest, peaks, heads)


def mixed_lengths(tokens: int, mean: int = 150, longest: int = 500, seed: int = 0) -> list[int]:
    """Log-normal sample lengths (16 to `longest`) that add up to `tokens`."""
    generator, lengths = torch.Generator().manual_seed(seed), list[int]()
    while sum(lengths) < tokens:
        drawn = torch.empty(1).log_normal_(math.log(mean) - 0.18, 0.6, generator=generator).item()
        lengths.append(int(min(longest, max(16, drawn), tokens - sum(lengths))))
    return lengths


def useful_flops(model: ModelShape, lengths: Sequence[int]) -> float:
    """Multiply-adds times two of the valid tokens: matrices, and the causal half of the attention. No head,
    no padding.
    """
    shape, tokens = model.layer, sum(lengths)
    matrices = sum(rows * columns for rows, columns in shape.matrices().values())
    pairs = sum(n * (n + 1) // 2 for n in lengths)
    return model.num_layers * (2.0 * matrices * tokens + 4.0 * shape.num_q * shape.head_dim * pairs)
