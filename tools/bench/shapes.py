"""Shapes of the benchmarked models, their arithmetic, and the benchmark's mixes of sample lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.models.architecture import Architecture, Rope
from engine.prefixes import Ids


def _architecture(
    hidden: int,
    middle: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    theta: float,
    **kind: bool,
) -> Architecture:
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    rope = Rope("default", tuple((1.0 / theta**exponent).tolist()), 1.0)
    return Architecture(
        vocab_size=32768, hidden_size=hidden, intermediate_size=middle, num_layers=layers, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=head_dim, norm_eps=1e-6, rope=rope, **kind,
    )  # fmt: skip


# The vocabulary is cut to 32,768: only rows that are looked up matter, and labels are a few rows of the head.
SHAPES = {
    "qwen3-0.6b": _architecture(1024, 3072, 28, 16, 8, 128, 1e6, qk_norm=True),
    "qwen2.5-0.5b": _architecture(896, 4864, 24, 14, 2, 64, 1e6, qkv_bias=True),
    "smollm2-135m": _architecture(576, 1536, 30, 9, 3, 64, 1e5),
}

SHARED = 64  # tokens that all samples of a request begin with, in a mix of its own
MIXES = {"mean150": (150.0, 500), "mean60": (60.0, 256)}


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one run, by what executes them."""

    matrices: float
    attention: float

    @property
    def flops(self) -> float:
        return self.matrices + self.attention


def count_work(a: Architecture, lengths: Sequence[int]) -> Work:
    """Useful ones: real tokens, the causal half of attention, past the last attention one row a sample."""
    tokens, samples = sum(lengths), len(lengths)
    qkv = 2 * a.hidden_size * (a.q_width + 2 * a.kv_width)
    rest = 2 * a.hidden_size * (a.q_width + 3 * a.intermediate_size)
    matrices = a.num_layers * qkv * tokens + rest * ((a.num_layers - 1) * tokens + samples)
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    return Work(matrices, a.num_layers * 4 * a.q_width * pairs)


def draw_lengths(count: int, mean: float, most: int, generator: torch.Generator) -> list[int]:
    """Log-normal with that mean (sigma 0.6), from 16 to `most` tokens."""
    drawn = torch.empty(count).log_normal_(math.log(mean) - 0.18, 0.6, generator=generator)
    return [int(min(most, max(16, x))) for x in drawn.tolist()]


def fill_lengths(tokens: int, mean: float, most: int, generator: torch.Generator) -> list[int]:
    """Lengths of that mix that add up to exactly `tokens`."""
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths += draw_lengths(1, mean, most, generator)
    lengths[-1] -= sum(lengths) - tokens
    return [length for length in lengths if length > 0]


def draw_requests(vocab_size: int) -> dict[str, list[list[Ids]]]:
    """64 requests of 15 samples a mix: log-normal lengths, or 150 tokens of which the first 64 are shared."""
    ids = torch.Generator().manual_seed(1)

    def draw(count: int) -> Ids:
        return tuple(torch.randint(0, vocab_size, (count,), generator=ids).tolist())

    mixes = {}
    for mix, (mean, most) in MIXES.items():
        lengths = torch.Generator().manual_seed(0)
        mixes[mix] = [[draw(n) for n in draw_lengths(15, mean, most, lengths)] for _ in range(64)]
    beginnings = [draw(SHARED) for _ in range(64)]
    mixes["shared64of150"] = [[beginning + draw(150 - SHARED) for _ in range(15)] for beginning in beginnings]
    return mixes
