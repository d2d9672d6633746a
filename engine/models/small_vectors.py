"""Scales and other short vectors as a compiled package's constants: stored as matrices of one row.

AOTInductor writes vectors of up to eight values into its code, and at every run fills them in again with
kernels of its own between ours: 110 us of a prefill's 1,600 on an H200. Matrices it leaves in memory.
"""

from __future__ import annotations

from torch import Tensor

MOST_INLINED = 8  # torch._inductor.graph.GraphLowering.can_inline_constant


def stored_shape(length: int) -> tuple[int, ...]:
    """Of the constant that holds a vector."""
    return (1, length) if length <= MOST_INLINED else (length,)


def store(x: Tensor) -> Tensor:
    """A vector as a constant; anything else as it is."""
    return x.view(stored_shape(x.shape[0])) if x.dim() == 1 else x


def vector(stored: Tensor) -> Tensor:
    """The inverse of `store`, a view, for what was a vector."""
    return stored.view(-1)
