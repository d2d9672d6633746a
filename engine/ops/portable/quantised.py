"""8-bit values and the scales that turn them back: value = q * scale.

e4m3, "static": one scale a tensor, from calibration, float32[1]. "token": one a row, float32[T, 1], computed
where the row is produced. e4m3 keeps its relative precision over 2^15, so one scale a weight matrix is as
good as one a row.

int8 (engine.quant.int8), weights with a scale for each 128 rows, float32[ceil(N / 128)]:

    rows     of the raw residual, float32[T, 1]: each row's own scale times the norm's factor 1 / rms
    heads    of attention's output: calibrated factors of its heads; the next weight undoes them, none is left
    blocks   of down's input after a 32-point Hadamard transform, float32[K / 128, T]; stored_columns
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.ops.portable.integers import BLOCK_COLUMNS, DISTANCES, stored_columns
from engine.quant.integers import LARGEST, round_int8
from engine.quant.integers import MIN_SCALE as MIN_INT8_SCALE

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
MIN_SCALE = 1e-12  # a row of zeros keeps a scale that divides

Quantise = Literal["none", "static", "token", "rows", "heads", "blocks"]
MODES: dict[str, int] = {"none": 0, "static": 1, "token": 2, "rows": 3, "heads": 4, "blocks": 5}  # in kernels
SCALED = ("static", "heads")  # by scales that are known beforehand


@dataclass(frozen=True)
class Activation:
    """values[T, K]: bf16 with no scale, or e4m3 or int8 with the scale that its mode has."""

    values: Tensor
    scale: Tensor | None = None


def dequantise(values: Tensor, scale: Tensor | None) -> Tensor:
    """float32 of the same shape."""
    wide = values.float()
    return wide if scale is None else wide * scale


def quantise_static(x: Tensor, scale: Tensor) -> Tensor:
    """e4m3 of x / scale, saturating; the reciprocal is taken first, as kernels do."""
    return (x.float() * (1.0 / scale)).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)


def quantise_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3[T, K] and its scales float32[T, 1]: the row's largest value becomes 448."""
    scale = (x.float().abs().amax(-1, keepdim=True) / E4M3_MAX).clamp_min(MIN_SCALE)
    return quantise_static(x, scale), scale


def quantise_rows_int8(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x float32[T, K] -> "rows": int8[T, K], float32[T, 1] = (max |x| / 127) / rms(x)."""
    scale = (x.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(MIN_INT8_SCALE)
    return round_int8(x, scale), scale * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def quantise_heads(x: Tensor, factor: Tensor) -> Tensor:
    """x float32[T, heads * D], factor float32[heads] -> "heads": int8 of x * factor."""
    heads: Tensor = x.unflatten(-1, (factor.shape[0], -1)) * factor[:, None]
    return heads.round().clamp(-128, 127).to(torch.int8).flatten(1)


def quantise_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """x float32[T, K], logical order -> "blocks": int8[T, K] stored, float32[K / 128, T]. Adds in the
    kernels' order."""
    x = x[:, stored_columns(x.shape[1]).to(x.device)]
    for distance in DISTANCES:
        low, high = x.reshape(len(x), -1, 2, distance).unbind(2)
        x = torch.stack([low + high, low - high], 2).flatten(1)
    blocks = x.reshape(len(x), -1, BLOCK_COLUMNS)
    scale = (blocks.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(MIN_INT8_SCALE)
    return round_int8(blocks, scale).flatten(1), (scale.squeeze(-1).T * 32**-0.5).contiguous()


def check_mode(
    mode: str, scale: Tensor | None, served: tuple[str, ...] = ("none", "static", "token")
) -> None:
    """ValueError for a mode that is not `served`, or a scale where it takes none."""
    if mode not in served:
        raise ValueError(f"quantise = {mode!r}: must be one of {', '.join(served)}")
    if (mode in SCALED) != (scale is not None):
        raise ValueError(f"quantise = {mode!r}: a scale is given exactly for {' and '.join(SCALED)}")


def empty_quantised(x: Tensor, shape: tuple[int, ...], mode: str) -> tuple[Tensor, Tensor]:
    """Uninitialised values and scales (none of them unless made with the values) on x's device."""
    element = x.dtype if mode == "none" else E4M3 if mode in ("static", "token") else torch.int8
    scales = {"token": (shape[0], 1), "rows": (shape[0], 1), "blocks": (shape[1] // BLOCK_COLUMNS, shape[0])}
    return (
        torch.empty(shape, dtype=element, device=x.device),
        torch.empty(scales.get(mode, (0, 1)), dtype=torch.float32, device=x.device),
    )
