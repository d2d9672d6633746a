"""What a decoder-only model is made of: the numbers that a family reads from a checkpoint's configuration.

Plain frozen values, written into an artifact's manifest; the eager definition is built from nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rope:
    """Rotary embedding, ready to use: angle = position * inv_freq; cos and sin are times `scaling`."""

    kind: str  # the name it had in the configuration, for the manifest
    inv_freq: tuple[float, ...]  # head_dim / 2 float32 values
    scaling: float


@dataclass(frozen=True)
class Architecture:
    """Pre-norm decoder with RMSNorm, rotary attention over grouped heads, and a SwiGLU MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of q and k, before the rotation

    @classmethod
    def from_manifest(cls, values: dict[str, Any]) -> Architecture:
        """From plain values, as dataclasses.asdict made them."""
        rope = values["rope"]
        return cls(**(values | {"rope": Rope(rope["kind"], tuple(rope["inv_freq"]), rope["scaling"])}))

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim
