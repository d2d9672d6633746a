"""The schemes without 8 bits: float32, the reference, and bf16, what a device computes otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.quant.rows import Rows


@dataclass(frozen=True)
class Float32Matrix:
    """weight float32[N, K], norm weights folded in."""

    weight: Tensor

    def __call__(self, rows: Rows) -> Tensor:
        return rows.finish(rows.values @ self.weight.T)


@dataclass(frozen=True)
class Bf16Matrix:
    """weight float32[N, K] of bf16 values; sums in float32."""

    weight: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Bf16Matrix:
        return cls(to_bf16(weight))

    def __call__(self, rows: Rows) -> Tensor:
        return rows.finish(rows.values.bfloat16().float() @ self.weight.T)


def to_bf16(values: Tensor) -> Tensor:
    """float32 of the nearest bf16 values."""
    return values.bfloat16().float()
