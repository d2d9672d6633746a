"""A matrix and a norm of a layer on the portable path: the tensors, and the operations that multiply.

Owned by their layer; nothing here knows where an input comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.plan import ELEMENTS, Precision
from engine.models.small_vectors import stored_shape, vector
from engine.ops.portable.integers import GROUP_ROWS
from engine.ops.portable.linear import linear_e4m3
from engine.ops.portable.linear_int8 import linear_int8
from engine.ops.portable.product_norm import product_add_norm
from engine.ops.portable.quantise import quantise_rows
from engine.ops.portable.quantised import Activation, Quantise


class Matrix(nn.Module):
    """One weight [out, in] in its planned precision; `quantise` is what its input must come as, `heads` how
    many scales that takes by "heads"."""

    weight: Tensor
    bias: Tensor | None
    weight_scales: Tensor | None
    input_scales: Tensor | None

    def __init__(
        self, shape: tuple[int, int], bias: bool, precision: Precision, quantise: Quantise, heads: int = 1
    ) -> None:
        super().__init__()
        self.quantise: Quantise = quantise
        self.integers = precision == "int8"
        self.register_buffer("weight", torch.empty(shape, dtype=ELEMENTS[precision]))
        self.register_buffer("bias", torch.empty(shape[0], dtype=torch.bfloat16) if bias else None)
        groups = -(-shape[0] // GROUP_ROWS) if self.integers else 1
        scales = None if precision == "bf16" else torch.empty(stored_shape(groups))
        self.register_buffer("weight_scales", scales)
        given = {"static": 1, "heads": heads}.get(quantise)
        self.register_buffer("input_scales", None if given is None else torch.empty(stored_shape(given)))

    @property
    def weight_scale(self) -> Tensor | None:
        """float32[1], of int8 one for each 128 rows."""
        return None if self.weight_scales is None else vector(self.weight_scales)

    @property
    def input_scale(self) -> Tensor | None:
        """float32[1] or by heads, where it is known beforehand."""
        return None if self.input_scales is None else vector(self.input_scales)

    def forward(self, x: Activation) -> Tensor:
        scale = self.weight_scale
        if scale is None:
            return F.linear(x.values, self.weight, self.bias)
        if self.integers:
            return linear_int8(x, self.weight, scale, self.bias, blocks=self.quantise == "blocks")
        return linear_e4m3(x, self.weight, scale, self.bias)

    def add(self, x: Tensor, inputs: Activation) -> tuple[Tensor, Tensor | None]:
        """The residual stream x with the product, as x and a delta that is still to be added, if any."""
        scale = self.weight_scale
        if scale is None or not self.integers:
            return x, self(self.fit(inputs))
        blocks = self.quantise == "blocks"
        return linear_int8(inputs, self.weight, scale, self.bias, residual=x, blocks=blocks), None

    def add_later(self, x: Tensor, inputs: Activation) -> tuple[Tensor, Tensor | Product | None]:
        """As add, but a product that the next norm may make stays to be made."""
        by_norm = self.bias is None and (self.weight_scales is None or self.quantise == "static")
        return (x, Product(self, inputs)) if by_norm else self.add(x, inputs)

    def fit(self, x: Activation) -> Activation:
        """x as this matrix takes it: a producer that saw only parts of a row leaves the row's scale to be
        found."""
        return quantise_rows(x.values) if self.quantise == "token" and x.scale is None else x


@dataclass(frozen=True)
class Product:
    """A delta of the residual stream that is not there yet: the norm behind it makes it."""

    matrix: Matrix
    inputs: Activation

    def add_norm(
        self, x: Tensor, norm: Norm, eps: float, scale: Tensor | None = None
    ) -> tuple[Tensor, Activation]:
        """The stream with it, and its norm, e4m3 by `scale` if given."""
        weight, weight_scale = self.matrix.weight, self.matrix.weight_scale
        return product_add_norm(self.inputs, weight, weight_scale, x, norm.weight, eps, scale=scale)

    def make(self) -> Tensor:
        """As a delta, for who cannot make it."""
        made: Tensor = self.matrix(self.inputs)
        return made


class Norm(nn.Module):
    """The weight of an RMSNorm; the operation is its caller's."""

    weight: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(width, dtype=torch.bfloat16))
