"""A decoder's two passes as a BeamModel: who keeps keys and values while a batch is searched.

One BeamCache belongs to one thread. The prompts' keys and values are those the prompt pass returned; the
suffixes' live in one buffer, made once for the largest batch. Its entries are never cleared: what a step may
read is said by `ancestors` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.packed import PackedBatch

Passes = Callable[[list[Tensor]], list[Tensor]]  # a compiled package, or an eager decoder


@dataclass(frozen=True)
class CacheShape:
    """Of the suffixes; `rows` is the most of one batch: prompts * beams."""

    layers: int
    slots: int
    rows: int
    kv_heads: int
    head_dim: int

    @property
    def row_size(self) -> int:
        return self.layers * self.slots * self.kv_heads * self.head_dim


class BeamCache:
    """State of one batch at a time: `load` a batch, then search over it."""

    def __init__(
        self, prompt: Passes, step: Passes, shape: CacheShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = shape.slots
        self._prompt, self._step, self._shape, self._device = prompt, step, shape, device
        # Untouched memory costs nothing until a batch first needs it (on a CPU).
        size = shape.row_size * shape.rows
        self._buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(2)]
        self._none = torch.empty(0, dtype=dtype, device=device)

    def load(self, packed: PackedBatch, width: int) -> None:
        """Take a batch whose prompts will have `width` beams each; ValueError for too many rows."""
        shape, rows = self._shape, packed.num_samples * width
        if not 2 <= rows <= shape.rows:
            raise ValueError(f"rows = {rows}: must be from 2 to {shape.rows}")
        self._inputs = [
            x.to(self._device, non_blocking=True)
            for x in (packed.input_ids, packed.positions, packed.cu_seqlens)
        ]
        borders = self._inputs[2][: packed.num_samples + 1]  # without the sample that `pack` may have added
        self._borders = borders
        self._lengths = (borders[1:] - borders[:-1]).long().repeat_interleave(width)
        sizes = (shape.layers, shape.slots, rows, shape.kv_heads, shape.head_dim)
        used = shape.row_size * rows
        self._suffix_keys, self._suffix_values = (x[:used].view(sizes) for x in self._buffers)
        self.release()

    def prompt(self) -> Tensor:
        hidden, self._keys, self._values = self._prompt(self._inputs)
        return hidden[: len(self._borders) - 1]

    def step(self, tokens: Tensor, step: int, ancestors: Tensor) -> Tensor:
        # A compiled package takes strides for granted: whatever the search made must be contiguous.
        prompts = [self._borders, self._keys, self._values]
        suffixes = [self._suffix_keys, self._suffix_values, ancestors.contiguous()]
        hidden, keys, values = self._step([tokens.contiguous(), self._lengths + step, *prompts, *suffixes])
        self._suffix_keys[:, step] = keys
        self._suffix_values[:, step] = values
        return hidden

    def release(self) -> None:
        """Let the prompts' keys and values go; the suffixes' buffer stays."""
        self._keys = self._values = self._none
