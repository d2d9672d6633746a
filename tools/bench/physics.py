"""The ceiling: how many FLOPs the samples need, and how many a second this device's matrix product gives.

Useful FLOPs only, 2 a multiply-add: every valid token through the layers' matrices, the causal half of
attention, and the head's label rows for the last token of each sample. No padding, no norms, no softmax.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tools.bench.workload import Request

ROUNDS = 20


@dataclass(frozen=True)
class Shape:
    """What of a decoder's architecture costs FLOPs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """From a transformers config."""
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            config.num_hidden_layers,
            config.hidden_size,
            heads,
            config.num_key_value_heads,
            head_dim,
            config.intermediate_size,
        )

    @property
    def flops_a_token(self) -> int:
        """The layers' matrices: query, key, value, output, gate, up, down."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return 2 * self.layers * (attention + 3 * self.hidden * self.intermediate)

    def useful_flops(self, requests: Sequence[Request], num_labels: int) -> float:
        """Of all samples of `requests`."""
        lengths = [len(sample.token_ids) for request in requests for sample in request]
        # q·k and p·v, each 2·head_dim a pair of positions; a position sees itself and what is before it
        pairs = sum(length * (length + 1) / 2 for length in lengths)
        attention = 4 * self.layers * self.heads * self.head_dim * pairs
        head = 2 * self.hidden * num_labels * len(lengths)
        return self.flops_a_token * sum(lengths) + attention + head


def gemm_ceiling(device: str, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of one plain square matrix product with torch, the fastest of some rounds."""
    left = torch.randn(size, size, device=device, dtype=dtype)
    right = torch.randn(size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(ROUNDS):
        synchronise(device)
        start = time.perf_counter()
        left @ right
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def synchronise(device: str) -> None:
    """Wait for what was launched; nothing on a CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
