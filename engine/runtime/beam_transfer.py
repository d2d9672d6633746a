"""What a captured search reads from the host and writes back: one copy each way, laid out by bucket.

Views of one memory, the host's pinned or the device's. A batch fills the host's before its graph is replayed,
and takes the results out after it. Both are plain copies in numpy over views that are made once: a launch
holds the interpreter meanwhile, and an operation of torch takes longer than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.beam.frontier import Frontier
from engine.packed import PAD_TOKEN, PackedBatch
from engine.runtime.beam_buckets import BeamBucket
from engine.runtime.capture import wide

_COLUMNS = ("tokens", "lengths", "parents", "nodes", "scores", "closed", "failed")  # the widest entries first


@dataclass(frozen=True)
class BeamInputs:
    """See PromptInputs; widths int64[prompts]."""

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    widths: Tensor

    @classmethod
    def over(cls, memory: Tensor, bucket: BeamBucket) -> Self:
        views, start = [], 0
        for size, dtype in _layout(bucket):
            views.append(memory[start : start + size].view(dtype))
            start += wide(size)
        return cls(*views)

    @staticmethod
    def num_bytes(bucket: BeamBucket) -> int:
        return sum(wide(size) for size, _ in _layout(bucket))


class HostInputs:
    """BeamInputs' memory on the host, to be filled."""

    def __init__(self, inputs: BeamInputs) -> None:
        self._ids, self._positions = inputs.input_ids.numpy(), inputs.positions.numpy()
        self._borders, self._widths = inputs.cu_seqlens.numpy(), inputs.widths.numpy()

    def fill(self, packed: PackedBatch, widths: Sequence[int]) -> None:
        """The real prompts; each of the others is one token of its own and has one beam."""
        tokens, prompts, borders = packed.num_tokens, packed.num_samples, self._borders
        self._ids[:tokens] = packed.token_ids[:tokens]
        self._ids[tokens:] = PAD_TOKEN
        self._positions[:tokens] = packed.token_positions[:tokens]
        self._positions[tokens:] = 0
        borders[: prompts + 1] = packed.borders[: prompts + 1]
        borders[prompts + 1 :] = np.arange(tokens + 1, tokens + len(borders) - prompts)
        self._widths[:prompts] = widths
        self._widths[prompts:] = 1


def _layout(bucket: BeamBucket) -> tuple[tuple[int, torch.dtype], ...]:
    return (
        (8 * bucket.tokens, torch.int64),
        (8 * bucket.tokens, torch.int64),
        (4 * (bucket.segments + 1), torch.int32),
        (8 * bucket.prompts, torch.int64),
    )


def gather_results(found: Frontier) -> Tensor:
    """Its bytes, uint8[n], one tensor to copy; kernels of one kind write it."""
    columns = [getattr(found, name) for name in _COLUMNS]
    return torch.cat([x.contiguous().flatten().view(torch.uint8) for x in columns if x is not None])


class HostResults:
    """What gather_results made, on the host."""

    def __init__(self, memory: Tensor, like: Frontier) -> None:
        """`like` has the shapes."""
        self._views: dict[str, NDArray[Any] | None] = {}
        start = 0
        for name in _COLUMNS:
            shape: Tensor | None = getattr(like, name)
            self._views[name] = None
            if shape is not None:
                column = memory[start : start + shape.nbytes].view(shape.dtype)
                self._views[name] = column.view(shape.shape).numpy()
                start += shape.nbytes

    def room(self, prompts: int, width: int) -> Room:
        """For a copy of the first prompts and beams; nothing is read yet."""
        columns: dict[str, Any] = {}
        pairs = []
        for name, view in self._views.items():
            columns[name] = None
            if view is not None:
                part = view[:prompts] if view.ndim == 1 else view[:prompts, :width]
                copy = np.empty_like(part)
                columns[name] = torch.from_numpy(copy)
                pairs.append((copy, part))
        return Room(Frontier(**columns), pairs)


class Room:
    """Where one batch's results will go: made while the device computes them, so that its end is followed by
    plain copies alone."""

    def __init__(self, found: Frontier, pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        self._found, self._pairs = found, pairs

    def fill(self) -> Frontier:
        """With what is there now; once."""
        for copy, part in self._pairs:
            np.copyto(copy, part)
        return self._found
