"""8-bit values and the scales that turn them back: value = q * scale.

Static: one scale a tensor, from calibration, float32[1]. Per token: one a row, float32[T, 1], computed
where the row is produced. e4m3 keeps its relative precision over 2^15, so one scale a weight matrix is as
good as one a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
MIN_SCALE = 1e-12  # a row of zeros keeps a scale that divides

Quantise = Literal["none", "static", "token"]
MODES: dict[str, int] = {"none": 0, "static": 1, "token": 2}  # as kernels know them


@dataclass(frozen=True)
class Activation:
    """values[T, K]: bf16 with no scale, or e4m3 with float32[1] (static) or float32[T, 1] (per token)."""

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


def check_mode(mode: str, scale: Tensor | None) -> None:
    if mode not in MODES:
        raise ValueError(f"quantise = {mode!r}: must be one of {', '.join(MODES)}")
    if (mode == "static") != (scale is not None):
        raise ValueError(f"quantise = {mode!r}: a scale is given exactly for 'static'")


def empty_quantised(x: Tensor, shape: tuple[int, ...], mode: str) -> tuple[Tensor, Tensor]:
    """Uninitialised values and row scales (none of them unless per token) on x's device."""
    values = torch.empty(shape, dtype=x.dtype if mode == "none" else E4M3, device=x.device)
    rows = (shape[0], 1) if mode == "token" else (0, 1)
    return values, torch.empty(rows, dtype=torch.float32, device=x.device)
