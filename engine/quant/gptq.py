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
SERIAL = 1 << 15  # elements that torch leaves to one thread: waking others for a column takes longer than it

Rounding = Callable[[Tensor], Tensor]  # float32[N] of one column -> its nearest representable values


class Compensation:
    """What rounding needs to know of a matrix' inputs, the same for every rounding. Works where they are."""

    def __init__(self, hessian: Tensor) -> None:
        """hessian[K, K]: X^T X of the inputs."""
        damp = DAMP * hessian.diagonal().mean().clamp_min(1e-8)
        self._order = torch.argsort(hessian.diagonal(), descending=True)
        damped = hessian.double()[self._order][:, self._order]
        damped.diagonal().add_(damp.double())
        # H = R R^T with an upper R, from the lower factor of H read backwards: then U = R^-1.
        upper = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
        one = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
        self._factor = torch.linalg.solve_triangular(upper, one, upper=True).float().contiguous()

    def round(self, weight: Tensor, rounding: Rounding) -> Tensor:
        """weight[N, K] -> float32[N, K] of representable values."""
        factor, width = self._factor, weight.shape[1]
        left = weight.float().T[self._order]  # a column in one piece of memory: four times as fast
        out = torch.empty_like(left)
        few = max(1, SERIAL // len(weight))
        for start in range(0, width, BLOCK):
            stop = min(start + BLOCK, width)
            errors = torch.empty_like(left[start:stop])
            for first in range(start, stop, few):
                last = min(first + few, stop)
                for j in range(first, last):
                    error = errors[j - start]
                    out[j] = rounding(left[j])
                    torch.sub(left[j], out[j], out=error)
                    error /= factor[j, j]
                    left[j + 1 : last].addr_(factor[j, j + 1 : last], error, alpha=-1)
                known = errors[first - start : last - start]
                left[last:stop].addmm_(factor[first:last, last:stop].T, known, alpha=-1)
            left[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
        return out[torch.argsort(self._order)].T.contiguous()


def compensate(weight: Tensor, hessian: Tensor | Compensation, rounding: Rounding) -> Tensor:
    """weight[N, K], hessian[K, K] (X^T X of its inputs) -> float32[N, K] of representable values."""
    known = hessian if isinstance(hessian, Compensation) else Compensation(hessian)
    return known.round(weight, rounding)
