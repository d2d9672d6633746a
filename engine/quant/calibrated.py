"""Scales that are chosen on calibration rows: the ones with the smallest squared error of the inputs.

A search over a grid; what saturates counts with what it loses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.quant.integers import LARGEST, MIN_SCALE, round_int8
from engine.quant.rows import Rows

WIDTHS = 2.5 * 1.3 ** torch.arange(
    24
)  # 2.5 to 1,000 root mean squares; where rms grows little, 3 to 4 is best
FINER = 1.3 ** torch.linspace(-0.9, 0.9, 9)  # around the best of them
FRACTIONS = torch.arange(0.3, 1.11, 0.05)  # of the largest value seen
MOST_ROWS = 2048
MOST_LOST = 3.0  # squared error of a predicted scale over the exact one's: above it, the exact one is taken


def predicted_width(rows: Rows) -> float | None:
    """Root mean squares of the step before that a row's largest value should be taken for; None where the
    rows grow so unevenly in this step that no prediction comes near a scale of the row's own."""
    if rows.before is None or rows.factor is None:
        return None
    x, before, factor = (each[:MOST_ROWS] for each in (rows.values, rows.before, rows.factor))

    def error(scale: Tensor) -> float:
        scale = scale.clamp_min(MIN_SCALE)
        return float(((round_int8(x, scale).float() * scale - x) * factor).square().mean())

    def predicted(width: float) -> float:
        return error(before * (width / LARGEST))

    width = _smallest(_smallest(WIDTHS, predicted) * FINER, predicted)
    exact = error(x.abs().amax(-1, keepdim=True) / LARGEST)
    return width if predicted(width) <= MOST_LOST * exact else None


def best_head_scales(values: Tensor, num_heads: int) -> Tensor:
    """float32[num_heads] of values[T, num_heads * D]."""
    heads = values[:MOST_ROWS].reshape(min(len(values), MOST_ROWS), num_heads, -1)
    scales = []
    for head in range(num_heads):
        x = heads[:, head]
        largest = float(x.abs().max())

        def error(fraction: float, x: Tensor = x, largest: float = largest) -> float:
            scale = x.new_tensor(max(fraction * largest / LARGEST, MIN_SCALE))
            return float((round_int8(x, scale).float() * scale - x).square().mean())

        scales.append(max(_smallest(FRACTIONS, error) * largest / LARGEST, MIN_SCALE))
    return torch.tensor(scales, device=values.device)


def _smallest(grid: Tensor, error: Callable[[float], float]) -> float:
    return float(min(grid.tolist(), key=error))
