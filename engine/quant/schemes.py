"""The schemes by name, and how each makes a matrix from calibration rows.

bf16          no 8 bits
e4m3_static   one calibrated scale a tensor          e4m3_token   one scale a row, made with the row
int8          the rotated scheme, residual scales predicted where that holds
int8_exact    the same, all residual scales exact
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from engine.models.architecture import Architecture
from engine.quant.calibrated import best_head_scales, predicted_width
from engine.quant.e4m3 import make_e4m3
from engine.quant.floats import Bf16Matrix, to_bf16
from engine.quant.gptq import compensate
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
ROTATED: frozenset[Scheme] = frozenset({"int8", "int8_exact"})
KINDS = ("qkv", "output", "gate_up", "down")


def unserved(scheme: Scheme, architecture: Architecture) -> dict[str, str]:
    """Kind -> why this architecture's matrices of that kind stay bf16 under the scheme."""
    if scheme in ROTATED and architecture.intermediate_size % COLUMNS_A_SCALE:
        reason = f"{architecture.intermediate_size} columns do not divide into blocks of {COLUMNS_A_SCALE}"
        return {"down": reason}
    return {}


def make_matrix(
    scheme: Scheme, kind: str, weight: Tensor, rows: Rows, num_heads: int, *, compensated: bool = True
) -> Matrix:
    """weight float32[N, K] with norms (and rotations) folded in; `rows`: its calibration inputs."""
    if scheme == "bf16":
        inputs = rows.inputs
        return Bf16Matrix.of(compensate(weight, inputs.T @ inputs, to_bf16) if compensated else weight)
    if scheme in ROTATED:
        rule = _rule(scheme, kind, rows, num_heads)
        if isinstance(rule, StaticHeads):
            inputs = rows.inputs / rule.scales.repeat_interleave(rows.inputs.shape[1] // num_heads)
        else:
            inputs = rule.fold(rows.inputs)
        return make_int8(rule, weight, inputs.T @ inputs if compensated else None)
    inputs = rows.inputs
    largest = float(rows.values.abs().max()) if scheme == "e4m3_static" else None
    return make_e4m3(weight, inputs.T @ inputs if compensated else None, largest)


def _rule(scheme: Scheme, kind: str, rows: Rows, num_heads: int) -> InputRule:
    if kind in STREAM:
        width = predicted_width(rows) if scheme == "int8" else None
        return ExactRows() if width is None else PredictedRows(width)
    if kind == "output":
        return StaticHeads(best_head_scales(rows.values, num_heads))
    return HadamardBlocks()
