"""int8 of a rotated decoder: how each kind of input is scaled, one weight scale for each 128 rows.

    residual, predicted   scale[t] = width * rms of the same row one step before / 127
    residual, exact       scale[t] = max_k |x[t, k]| / 127
    attention output      scale[h], calibrated, one for each head: it may be folded into v's and o's weights
    down's input          y = 32-point Hadamard of x (the weight too);  scale[t, b], b: 128 columns of y

A predicted scale lets the kernel that makes a row quantise it before it has seen all of it. Static scales
fail on the residual and on down's input: a few tokens are a hundred times larger than the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.quant.gptq import Compensation, compensate
from engine.quant.integers import LARGEST, MIN_SCALE, multiply, round_int8
from engine.quant.rotation import hadamard
from engine.quant.rows import Rows

ROWS_A_SCALE = 128  # of a weight: a tile's share of them, so that a kernel reads one number
HADAMARD, COLUMNS_A_SCALE = 32, 128


class InputRule(Protocol):
    """Rows -> int8[T, K] and scale float32[T or 1, B]; `fold` changes a weight so that the product stays."""

    def quantise(self, rows: Rows) -> tuple[Tensor, Tensor]: ...
    def fold(self, weight: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class ExactRows:
    """A scale a row, from the row itself."""

    def quantise(self, rows: Rows) -> tuple[Tensor, Tensor]:
        scale = (rows.values.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(MIN_SCALE)
        return round_int8(rows.values, scale), scale

    def fold(self, weight: Tensor) -> Tensor:
        return weight


@dataclass(frozen=True)
class PredictedRows:
    """A scale a row, `width` root mean squares of the step before; the first step has none and is exact."""

    width: float

    def quantise(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if rows.before is None:
            return ExactRows().quantise(rows)
        scale = (rows.before * (self.width / LARGEST)).clamp_min(MIN_SCALE)
        return round_int8(rows.values, scale), scale

    def fold(self, weight: Tensor) -> Tensor:
        return weight


@dataclass(frozen=True)
class StaticHeads:
    """One calibrated scale for each head of the attention output, float32[heads]."""

    scales: Tensor

    def quantise(self, rows: Rows) -> tuple[Tensor, Tensor]:
        heads = rows.values.reshape(len(rows.values), len(self.scales), -1)
        return round_int8(heads, self.scales[:, None]).flatten(1), self.scales.new_ones(1, 1)

    def fold(self, weight: Tensor) -> Tensor:
        width = weight.shape[1] // len(self.scales)
        return weight * self.scales.repeat_interleave(width)


@dataclass(frozen=True)
class HadamardBlocks:
    """A scale for each row and 128 columns, after a 32-point Hadamard."""

    def quantise(self, rows: Rows) -> tuple[Tensor, Tensor]:
        mixed = self.fold(rows.values)
        blocks = mixed.reshape(len(mixed), -1, COLUMNS_A_SCALE)
        scale = (blocks.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(MIN_SCALE)
        return round_int8(blocks, scale).flatten(1), scale.squeeze(-1)

    def fold(self, weight: Tensor) -> Tensor:
        return (weight.reshape(len(weight), -1, HADAMARD) @ hadamard(HADAMARD).to(weight.device)).flatten(1)


@dataclass(frozen=True)
class Int8Matrix:
    """weight int8[N, K], weight_scale float32[N], the same within each 128 rows."""

    rule: InputRule
    weight: Tensor
    weight_scale: Tensor

    def __call__(self, rows: Rows) -> Tensor:
        values, scale = self.rule.quantise(rows)
        return rows.finish(multiply(values, scale, self.weight, self.weight_scale))


def make_int8(rule: InputRule, weight: Tensor, second_moments: Tensor | Compensation | None) -> Int8Matrix:
    """weight float32[N, K] of the plain inputs; second_moments[K, K]: X^T X of the inputs as `rule` folds
    them, None rounds to nearest."""
    folded = rule.fold(weight)
    largest = torch.stack([rows.abs().max() for rows in torch.split(folded, ROWS_A_SCALE)])
    groups = (largest / LARGEST).clamp_min(MIN_SCALE)
    scale = groups.repeat_interleave(ROWS_A_SCALE)[: weight.shape[0]]

    def rounding(column: Tensor) -> Tensor:
        return (column / scale).round().clamp(-LARGEST, LARGEST) * scale

    if second_moments is None:
        rounded = _nearest(folded, scale)
    else:
        rounded = compensate(folded, second_moments, rounding)
    return Int8Matrix(rule, (rounded / scale[:, None]).round().to(torch.int8), scale)


def _nearest(weight: Tensor, scale: Tensor) -> Tensor:
    return (weight / scale[:, None]).round().clamp(-LARGEST, LARGEST) * scale[:, None]
