"""The schemes by name, the forms of a decoder that they are for, and how each makes a matrix from
calibration rows.

bf16          no 8 bits
e4m3_static   one calibrated scale a tensor          e4m3_token   one scale a row, made with the row
int8          the rotated scheme, residual scales predicted where that holds
int8_exact    the same, all residual scales exact

plain         the decoder as it is, e4m3 and bf16 of it
heads         v and the attention output rotated, the stream as it is: int8 for what does not read the stream
stream        both rotated: int8 for all
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor

from engine.models.architecture import Architecture
from engine.quant.calibrated import best_head_scales, predicted_width
from engine.quant.e4m3 import make_e4m3
from engine.quant.floats import Bf16Matrix, to_bf16
from engine.quant.gptq import Compensation, compensate
from engine.quant.int8 import (
    COLUMNS_A_SCALE,
    ExactRows,
    HadamardBlocks,
    InputRule,
    PredictedRows,
    StaticHeads,
    make_int8,
)
from engine.quant.rows import STREAM, Matrix, Rows

Scheme = Literal["bf16", "e4m3_static", "e4m3_token", "int8", "int8_exact"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
Form = Literal["plain", "heads", "stream"]
ROTATED: frozenset[Scheme] = frozenset({"int8", "int8_exact"})
KINDS = ("qkv", "output", "gate_up", "down")


def whole_form(scheme: Scheme) -> Form:
    """Of the decoder with all of its matrices under one scheme."""
    return "stream" if scheme in ROTATED else "plain"


def unserved(scheme: Scheme, architecture: Architecture, form: Form | None = None) -> dict[str, str]:
    """Kind -> why matrices of that kind stay bf16 under the scheme. `form`: whole_form where None."""
    if scheme not in ROTATED:
        return {}
    reasons = {}
    if form == "heads":
        reasons = dict.fromkeys(STREAM, "int8 of the residual needs a rotated stream")
    if architecture.intermediate_size % COLUMNS_A_SCALE:
        width = architecture.intermediate_size
        reasons["down"] = f"{width} columns do not divide into blocks of {COLUMNS_A_SCALE}"
    return reasons


def make_matrix(
    scheme: Scheme, kind: str, weight: Tensor, rows: Rows, num_heads: int, *, compensated: bool = True,
    known: Callable[[], Compensation] | None = None,
) -> Matrix:  # fmt: skip
    """weight float32[N, K] with norms (and rotations) folded in; `rows`: its calibration inputs,
    `known`: what they say about rounding, worked out when it is first asked for."""
    plain = rows.inputs

    def hessian(inputs: Tensor) -> Tensor | Compensation | None:
        if not compensated:
            return None
        return known() if inputs is plain and known is not None else inputs.T @ inputs

    if scheme == "bf16":
        known_here = hessian(plain)
        return Bf16Matrix.of(weight if known_here is None else compensate(weight, known_here, to_bf16))
    if scheme in ROTATED:
        rule = _rule(scheme, kind, rows, num_heads)
        if isinstance(rule, StaticHeads):
            inputs = plain / rule.scales.repeat_interleave(plain.shape[1] // num_heads)
        else:
            inputs = rule.fold(plain)
        return make_int8(rule, weight, hessian(inputs))
    largest = float(rows.values.abs().max()) if scheme == "e4m3_static" else None
    return make_e4m3(weight, hessian(plain), largest)


def _rule(scheme: Scheme, kind: str, rows: Rows, num_heads: int) -> InputRule:
    if kind in STREAM:
        width = predicted_width(rows) if scheme == "int8" else None
        return ExactRows() if width is None else PredictedRows(width)
    if kind == "output":
        return StaticHeads(best_head_scales(rows.values, num_heads))
    return HadamardBlocks()
