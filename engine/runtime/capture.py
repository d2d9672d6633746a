"""Capturing a CUDA graph, and the pinned memory that its copies go through.

A capture belongs to the calling thread and to one stream; what it allocates comes from the given pool.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ALIGN = 64  # bytes; kernels read 16 at a time


class Capture:
    """torch.cuda.graph without collecting garbage and emptying caches, which cost more than a capture."""

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def __enter__(self) -> torch.cuda.CUDAGraph:
        self._stream.synchronize()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return self._graph

    def __exit__(self, *_: object) -> None:
        self._graph.capture_end()


def pinned_like(x: Tensor) -> Tensor:
    """Host memory for a copy of x; floating values are widened."""
    dtype = torch.float32 if x.is_floating_point() else x.dtype
    return torch.empty(x.shape, dtype=dtype, pin_memory=True)


def copy_out(values: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Enqueue the copies from the device."""
    for value, result in zip(values, results, strict=True):
        result.copy_(value.to(result.dtype), non_blocking=True)


def wide(num_bytes: int) -> int:
    """Up to the alignment."""
    return -(-num_bytes // _ALIGN) * _ALIGN
