"""e4m3: one scale a weight matrix; inputs with one calibrated scale a tensor, or one a row.

    static: q = e4m3(x / scale), scale = HEADROOM * largest / 448      token: scale[t] = max_k |x[t, k]| / 448

Of the residual stream it is the raw residual that is quantised, as the fused kernels do. e4m3 keeps its
relative precision over 2^15, so a scale a channel or a rotation gains it little.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.ops.portable.quantised import E4M3, E4M3_MAX, MIN_SCALE, quantise_per_token, quantise_static
from engine.quant.gptq import Compensation, compensate
from engine.quant.rows import Rows

HEADROOM = 2.0  # the largest calibrated value maps to half of the range; it costs e4m3 nothing


@dataclass(frozen=True)
class E4m3Matrix:
    """weight e4m3[N, K] = w / weight_scale; scale float32[1] of the inputs, None: a scale a row."""

    weight: Tensor
    weight_scale: float
    scale: Tensor | None

    def __call__(self, rows: Rows) -> Tensor:
        if self.scale is None:
            values, scale = quantise_per_token(rows.values)
        else:
            values, scale = quantise_static(rows.values, self.scale), self.scale
        # Products of two e4m3 values are exact in float32, their sum nearly so.
        return rows.finish((values.float() @ self.weight.float().T) * (scale * self.weight_scale))


def make_e4m3(weight: Tensor, hessian: Tensor | Compensation | None, largest: float | None) -> E4m3Matrix:
    """weight float32[N, K]; hessian: of its inputs, None rounds to nearest; `largest` input value of a static
    scale."""
    weight_scale = max(float(weight.abs().max()) / E4M3_MAX, MIN_SCALE)

    def rounding(column: Tensor) -> Tensor:
        return (column / weight_scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3).float() * weight_scale

    rounded = rounding(weight) if hessian is None else compensate(weight, hessian, rounding)
    scale = None
    if largest is not None:
        scale = weight.new_tensor([max(HEADROOM * largest / E4M3_MAX, MIN_SCALE)])
    return E4m3Matrix((rounded / weight_scale).to(E4M3), weight_scale, scale)
