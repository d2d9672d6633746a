"""Shapes of the benchmarked models and their arithmetic: FLOPs by what executes them, bytes, time at best.

Useful FLOPs only: computed tokens, the causal half of attention, past the last attention one row a sample.
No padding, norms, softmax or head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from engine.models.architecture import Architecture, Rope
from engine.models.plan import MATRICES
from engine.packed import PackedBatch
from tools.bench.peaks import Peaks


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


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one run: by matrix, and attention's."""

    qkv: float
    output: float
    gate_up: float
    down: float
    attention: float

    @property
    def matrices(self) -> float:
        return self.qkv + self.output + self.gate_up + self.down

    @property
    def flops(self) -> float:
        return self.matrices + self.attention

    def by_class(self) -> dict[str, float]:
        return asdict(self)

    def in_8_bits(self, narrow: Mapping[str, float]) -> float:
        """Of these, those in e4m3 or int8, whose peaks are alike; `narrow`: the share of layers in them."""
        flops = self.by_class()
        return sum(flops[matrix] * share for matrix, share in narrow.items())


def count_work(a: Architecture, lengths: Sequence[int]) -> Work:
    """Of samples that are computed whole."""
    return _count(a, sum(lengths), len(lengths), sum(length * (length + 1) / 2 for length in lengths))


def count_packed(a: Architecture, packed: PackedBatch) -> Work:
    """Of what a batch computes: a token at position p attends to p + 1, wherever those were computed."""
    pairs = float((packed.positions[: packed.num_tokens] + 1).sum())
    return _count(a, packed.num_tokens, packed.num_samples, pairs)


def _count(a: Architecture, tokens: int, samples: int, pairs: float) -> Work:
    rows = (a.num_layers - 1) * tokens + samples
    return Work(
        qkv=2 * a.hidden_size * (a.q_width + 2 * a.kv_width) * a.num_layers * tokens,
        output=2 * a.hidden_size * a.q_width * rows,
        gate_up=2 * a.hidden_size * 2 * a.intermediate_size * rows,
        down=2 * a.hidden_size * a.intermediate_size * rows,
        attention=a.num_layers * 4 * a.q_width * pairs,
    )


def narrow_matrices(plan: Mapping[str, Any] | None) -> dict[str, float]:
    """The share of layers in which a matrix is in 8 bits, from a manifest's plan; without one none is."""
    if plan is None:
        return {}
    layers = plan["layers"]
    return {matrix: sum(layer[matrix] != "bf16" for layer in layers) / len(layers) for matrix in MATRICES}


def least_bytes(a: Architecture, tokens: int, narrow: Mapping[str, float]) -> float:
    """Every matrix once and a row of the bfloat16 embedding for each token; what lies between can stay in
    caches."""
    elements = {
        "qkv": a.hidden_size * (a.q_width + 2 * a.kv_width), "output": a.hidden_size * a.q_width,
        "gate_up": 2 * a.hidden_size * a.intermediate_size, "down": a.hidden_size * a.intermediate_size,
    }  # fmt: skip
    matrices = sum(count * (2 - narrow.get(matrix, 0.0)) for matrix, count in elements.items())
    return a.num_layers * matrices + 2 * a.hidden_size * tokens


def ideal_s(work: Work, narrow: Mapping[str, float], peaks: Peaks) -> float:
    """Seconds at dense peaks, each FLOP at that of its type: what mfu_weighted is a share of."""
    fp8 = work.in_8_bits(narrow)
    return (work.flops - fp8) / peaks.bf16 + fp8 / peaks.fp8
