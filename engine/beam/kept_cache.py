"""A decoder's two passes as a BeamModel, where the passes write keys and values in place: CUDA's packages.

One KeptCache belongs to one thread and one stream. Its buffers are made once, for the largest batch, and
never cleared: what a pass may read is said by borders and ancestors alone. A batch's inputs are the caller's;
where they stay in one place, `prompt` and `step` can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.portable.beam_positions import beam_positions
from engine.packed import PackedBatch

Passes = Callable[[list[Tensor]], list[Tensor]]  # a compiled package, or an eager decoder


@dataclass(frozen=True)
class KeptShape:
    """`tokens` and `rows` are the most of one batch: of all its prompts, and prompts * beams."""

    layers: int
    slots: int
    tokens: int
    rows: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class PromptInputs:
    """On the device: input_ids, positions int64[T], cu_seqlens int32[S+1], S at least 2; see PackedBatch."""

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor


class KeptCache:
    """State of one batch at a time: `hold` a batch, then search over it."""

    def __init__(
        self, prompt: Passes, step: Passes, shape: KeptShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = shape.slots
        self._prompt, self._step, self._shape, self._device = prompt, step, shape, device
        row = shape.layers * shape.kv_heads * shape.head_dim
        self._prompts, self._suffixes = (
            [torch.empty(row * count, dtype=dtype, device=device) for _ in range(2)]
            for count in (shape.tokens, shape.rows * shape.slots)
        )
        self._slot = [torch.tensor([slot], device=device) for slot in range(shape.slots)]

    def load(self, packed: PackedBatch, width: int) -> None:
        """`hold` a batch that is on the host."""
        given = (packed.input_ids, packed.positions, packed.cu_seqlens)
        inputs = PromptInputs(*(x.to(self._device, non_blocking=True) for x in given))
        self.hold(inputs, packed.num_samples, width)

    def hold(self, inputs: PromptInputs, num_prompts: int, width: int) -> None:
        """The first `num_prompts` samples get `width` beams each; ValueError where there is no room."""
        shape, rows, tokens = self._shape, num_prompts * width, len(inputs.input_ids)
        for key, value, most in (("rows", rows, shape.rows), ("tokens", tokens, shape.tokens)):
            if not 2 <= value <= most:
                raise ValueError(f"{key} = {value}: must be from 2 to {most}")
        self._inputs = inputs
        self._borders = inputs.cu_seqlens[: num_prompts + 1]
        self._positions = beam_positions(self._borders, shape.slots, width)
        self._prompt_cache = self._view(self._prompts, 1, tokens)
        self._suffix_cache = self._view(self._suffixes, shape.slots, rows)

    def prompt(self) -> Tensor:
        given = self._inputs
        hidden = self._prompt([given.input_ids, given.positions, given.cu_seqlens, *self._prompt_cache])[0]
        return hidden[: len(self._borders) - 1]

    def step(self, tokens: Tensor, step: int, ancestors: Tensor) -> Tensor:
        # A compiled package takes strides for granted: whatever the search made must be contiguous.
        caches = [*self._prompt_cache, *self._suffix_cache]
        given = [tokens.contiguous(), self._positions[step], self._borders, *caches, ancestors.contiguous()]
        return self._step([*given, self._slot[step]])[0]

    def release(self) -> None:
        """Nothing to let go: the buffers stay."""

    def _view(self, buffers: list[Tensor], slots: int, rows: int) -> list[Tensor]:
        """Keys and values [layers, slots, rows, kv heads, head_dim] at the front of their buffers."""
        shape = self._shape
        sizes = (shape.layers, slots, rows, shape.kv_heads, shape.head_dim)
        used = shape.layers * slots * rows * shape.kv_heads * shape.head_dim
        return [x[:used].view(sizes) for x in buffers]
