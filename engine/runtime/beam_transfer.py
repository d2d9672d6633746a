"""What a captured search reads from the host and writes back: one copy each way, laid out by bucket.

Views of one memory, the host's pinned or the device's. A batch fills the host's before its graph is replayed,
and takes the results out after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.beam.frontier import Frontier
from engine.packed import PAD_TOKEN, PackedBatch
from engine.runtime.beam_buckets import BeamBucket
from engine.runtime.capture import wide

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
        """The real prompts; each of the others is one token of its own and has one beam."""
        tokens, prompts = packed.num_tokens, packed.num_samples
        padding = torch.arange(1, len(self.cu_seqlens) - prompts)
        self.input_ids[:tokens].copy_(packed.input_ids[:tokens])
        self.input_ids[tokens:].fill_(PAD_TOKEN)
        self.positions[:tokens].copy_(packed.positions[:tokens])
        self.positions[tokens:].zero_()
        self.cu_seqlens[: prompts + 1].copy_(packed.cu_seqlens[: prompts + 1])
        self.cu_seqlens[prompts + 1 :].copy_(padding + tokens)
        self.widths[:prompts].copy_(torch.tensor(widths))
        self.widths[prompts:].fill_(1)


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
    start = 0

    def take(x: Tensor | None) -> Tensor | None:
        nonlocal start
        if x is None:
            return None
        bits = memory[start : start + x.numel()].view(x.shape)
        start += x.numel()
        bits = bits[:prompts, :width] if x.dim() > 1 else bits[:prompts]
        return bits.view(torch.float32).clone() if x.is_floating_point() else bits.to(x.dtype, copy=True)

    scores, lengths, parents, closed, nodes = (take(getattr(like, name)) for name in _COLUMNS)
    tokens, failed = take(like.tokens), take(like.failed)
    assert scores is not None and lengths is not None and parents is not None  # noqa: PT018
    assert tokens is not None and failed is not None  # noqa: PT018
    return Frontier(scores, tokens, lengths, closed, nodes, parents, failed)


def _bits(x: Tensor) -> Tensor:
    flat = x.contiguous().flatten()
    return flat.view(torch.int32) if flat.is_floating_point() else flat.to(torch.int32)
