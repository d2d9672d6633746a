"""Error-compensated rounding of a weight matrix (GPTQ, arXiv 2210.17323), for any rounding rule.

Columns are rounded one after the other, those with the largest inputs first; what rounding took from one is
made up for by those that are not rounded yet, as the inputs' second moments say:

    H = X^T X + damp * mean(diag) * I,   U = upper Cholesky factor of H^-1
    e = (w[:, j] - q) / U[j, j],   w[:, j:] -= e U[j, j:]

Changes nothing about what a kernel reads: only which of the neighbouring grid points a weight becomes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DAMP = 0.01
BLOCK = 64  # columns whose effect on the rest is applied in one product

Rounding = Callable[[Tensor], Tensor]  # float32[N] of one column -> its nearest representable values


class Compensation:
    """What rounding needs to know of a matrix' inputs; the costly half, and the same for every rounding."""

    def __init__(self, hessian: Tensor) -> None:
        """hessian[K, K]: X^T X of the inputs."""
        damp = DAMP * hessian.diagonal().mean().clamp_min(1e-8)
        self._order = torch.argsort(hessian.diagonal(), descending=True)
        damped = hessian.double()[self._order][:, self._order]
        damped.diagonal().add_(damp.double())
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        self._factor = torch.linalg.cholesky(inverse, upper=True).float()

    def round(self, weight: Tensor, rounding: Rounding) -> Tensor:
        """weight[N, K] -> float32[N, K] of representable values."""
        factor, width = self._factor, weight.shape[1]
        left = weight.float()[:, self._order]
        out = torch.empty_like(left)
        for start in range(0, width, BLOCK):
            stop = min(start + BLOCK, width)
            errors = torch.empty(left.shape[0], stop - start)
            for j in range(start, stop):
                column = left[:, j]
                out[:, j] = rounding(column)
                error = (column - out[:, j]) / factor[j, j]
                errors[:, j - start] = error
                left[:, j:stop] -= error[:, None] * factor[j, j:stop]
            left[:, stop:] -= errors @ factor[start:stop, stop:]
        return out[:, torch.argsort(self._order)]


def compensate(weight: Tensor, hessian: Tensor | Compensation, rounding: Rounding) -> Tensor:
    """weight[N, K], hessian[K, K] (X^T X of its inputs) -> float32[N, K] of representable values."""
    known = hessian if isinstance(hessian, Compensation) else Compensation(hessian)
    return known.round(weight, rounding)
