"""What every oracle multiplies with, and how scales of weights lie: one a matrix (e4m3; 1 in bf16), in int8
one for each 128 rows (of gate_up's stored rows, two groups take turns in every 256: gate and up).

    scales = [a scale for each group of rows ..., factor]
    y[t, n] = scales[group of n] * row_scales[t] * sum over k of a[t, k] w[n, k]                     or
              scales[group of n] * sum over blocks b of block_scales[b, t] * (sum over the 128 columns of b)

`factor` is what an epilogue multiplies its results with before it quantises them. Scales without one are of
int8 layers whose next product wants the exact scale of each row: it is left to `rows`. Sums of int8 products
are exact, as the kernels' are.
"""

import torch
from torch import Tensor

from engine.quant.integers import multiply

GROUP_ROWS = 128  # row_factors.cuh: kGroupRows
BLOCK_COLUMNS = 128  # consume_blocks.cuh: a stage


def num_groups(outputs: int, element: torch.dtype) -> int:
    """Scales of a weight with so many rows."""
    return -(-outputs // GROUP_ROWS) if element == torch.int8 else 1


def has_factor(scales: Tensor, w: Tensor) -> bool:
    """Whether the epilogue can quantise its results; else `rows` does."""
    return scales.shape[0] > num_groups(w.shape[0], w.dtype)


def check_scales(scales: Tensor, w: Tensor) -> None:
    """ValueError unless they are the groups' of w, with or without a factor."""
    groups = num_groups(w.shape[0], w.dtype)
    if scales.dtype != torch.float32 or scales.dim() != 1 or scales.shape[0] not in (groups, groups + 1):
        raise ValueError(
            f"scales is {tuple(scales.shape)} {scales.dtype}, wanted ({groups + 1},) torch.float32: "
            f"a scale for each of {groups} groups of rows, and a factor"
        )


def product(
    a: Tensor,
    w: Tensor,
    scales: Tensor,
    row_scales: Tensor | None = None,
    block_scales: Tensor | None = None,
    *,
    paired: bool = False,
) -> Tensor:
    """a [T, K], w [N, K] of one type, row_scales [T], block_scales [K / 128, T] -> float32[T, N]. paired:
    the stored rows of gate_up.
    """
    if a.dtype != torch.int8:
        y: Tensor = (a.float() @ w.float().T) * scales[0]
        return y
    if block_scales is not None:
        of_rows = block_scales.T
    elif row_scales is not None:
        of_rows = row_scales[:, None]
    else:
        of_rows = torch.ones(1, 1, device=a.device)
    return multiply(a, of_rows, w, scales_of_rows(scales, w, paired=paired))


def scales_of_rows(scales: Tensor, w: Tensor, *, paired: bool = False) -> Tensor:
    """float32[N]: the scale of each stored row of w [N, K]; paired: those of gate_up."""
    row = torch.arange(w.shape[0], device=w.device)
    if w.dtype != torch.int8:
        return scales[torch.zeros_like(row)]
    return scales[row // (2 * GROUP_ROWS) * 2 + row % 2 if paired else row // GROUP_ROWS]
