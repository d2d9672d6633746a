"""What a matrix of the decoder reads, and what multiplies it: the protocol that every scheme serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

STREAM = ("qkv", "gate_up")  # kinds of matrices that read the residual stream


@dataclass(frozen=True)
class Rows:
    """float32. The matrix' input is values * factor; kernels quantise `values` and apply `factor`[T, 1] to
    the product.

    Of the residual stream, `values` is the raw residual, `factor` one over its root mean square, and `before`
    that of the same token one step earlier (None at the first step). Elsewhere both are None.
    """

    values: Tensor  # [T, K]
    factor: Tensor | None = None
    before: Tensor | None = None

    def take(self, chosen: Tensor) -> Rows:
        """The rows that an index or a mask chooses."""
        factor = None if self.factor is None else self.factor[chosen]
        before = None if self.before is None else self.before[chosen]
        return Rows(self.values[chosen], factor, before)

    @property
    def inputs(self) -> Tensor:
        """[T, K]: what the matrix is to be multiplied with."""
        return self.values if self.factor is None else self.values * self.factor

    def finish(self, product: Tensor) -> Tensor:
        """`values` times a matrix -> the inputs times it."""
        return product if self.factor is None else product * self.factor


class Matrix(Protocol):
    """One matrix under one scheme, bias apart; float32[N] rows of the product leave it."""

    def __call__(self, rows: Rows) -> Tensor: ...
