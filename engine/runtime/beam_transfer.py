"""What a captured search reads from the host and writes back: one copy each way, laid out by bucket.

Views of one memory, the host's pinned or the device's. A batch fills the host's before its graph is replayed,
and takes the results out after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.beam.frontier import Frontier
from engine.packed import PAD_TOKEN, PackedBatch
from engine.runtime.beam_buckets import BeamBucket
from engine.runtime.capture import wide

_HOST: dict[torch.dtype, Any] = {torch.int64: np.int64, torch.bool: np.bool_}
_COLUMNS = ("scores", "lengths", "parents", "closed", "nodes")  # of Frontier, [S, B] each


@dataclass(frozen=True)
class BeamInputs:
    """See PromptInputs; widths int64[prompts]."""

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    widths: Tensor

    @classmethod
    def over(cls, memory: Tensor, bucket: BeamBucket) -> BeamInputs:
        views, start = [], 0
        for size, dtype in _layout(bucket):
            views.append(memory[start : start + size].view(dtype))
            start += wide(size)
        return cls(*views)

    @staticmethod
    def num_bytes(bucket: BeamBucket) -> int:
        return sum(wide(size) for size, _ in _layout(bucket))

    def fill(self, packed: PackedBatch, widths: Sequence[int]) -> None:
        """The real prompts; each of the others is one token of its own and has one beam. Plain copies in
        numpy: a launch holds the interpreter meanwhile."""
        ids, positions, borders, limits = (x.numpy() for x in vars(self).values())
        tokens, prompts = packed.num_tokens, packed.num_samples
        ids[:tokens] = packed.input_ids.numpy()[:tokens]
        ids[tokens:] = PAD_TOKEN
        positions[:tokens] = packed.positions.numpy()[:tokens]
        positions[tokens:] = 0
        borders[: prompts + 1] = packed.cu_seqlens.numpy()[: prompts + 1]
        borders[prompts + 1 :] = np.arange(tokens + 1, tokens + len(borders) - prompts)
        limits[:prompts] = widths
        limits[prompts:] = 1


def _layout(bucket: BeamBucket) -> tuple[tuple[int, torch.dtype], ...]:
    return (
        (8 * bucket.tokens, torch.int64),
        (8 * bucket.tokens, torch.int64),
        (4 * (bucket.segments + 1), torch.int32),
        (8 * bucket.prompts, torch.int64),
    )


def gather_results(found: Frontier) -> Tensor:
    """Everything of it as int32[n], one tensor to copy; scores by their bits."""
    columns = [getattr(found, name) for name in _COLUMNS]
    parts = [_bits(x) for x in (*columns, found.tokens, found.failed) if x is not None]
    return torch.cat(parts)


def spread_results(memory: Tensor, like: Frontier, prompts: int, width: int) -> Frontier:
    """The opposite, on the host, of the first prompts and beams; `like` has the shapes. Copies."""
    given, start, found = memory.numpy(), 0, dict[str, Any]()
    for name in (*_COLUMNS, "tokens", "failed"):
        shape: Tensor | None = getattr(like, name)
        if shape is None:
            found[name] = None
            continue
        bits = given[start : start + shape.numel()].reshape(shape.shape)[:prompts]
        start += shape.numel()
        bits = bits[:, :width] if bits.ndim > 1 else bits
        values = bits.astype(_HOST[shape.dtype]) if shape.dtype != torch.float32 else bits.copy()
        found[name] = torch.from_numpy(values.view(np.float32) if shape.dtype == torch.float32 else values)
    return Frontier(**found)


def _bits(x: Tensor) -> Tensor:
    flat = x.contiguous().flatten()
    return flat.view(torch.int32) if flat.is_floating_point() else flat.to(torch.int32)
