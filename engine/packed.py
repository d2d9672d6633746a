"""Packed batch: the samples of one or more requests end to end, without padding.

input_ids and positions hold every token of every sample; cu_seqlens says where each sample starts and ends.
Plain CPU tensors that nobody changes after `pack`; any thread may hold one.

A compiled package treats sizes 0 and 1 as special, so `pack` adds a one-token sample of its own to a batch of
one. It comes last, is not counted in num_samples and num_tokens, and LanePool drops its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

MIN_SAMPLES = 2  # the smallest size that torch.export keeps symbolic
PAD_TOKEN = 0  # any id of any vocabulary: no other sample sees it


@dataclass(frozen=True)
class BatchBounds:
    """The most that one packed batch of an artifact may hold; requests packed together share it."""

    samples: int
    tokens: int
    tokens_per_sample: int

    def __post_init__(self) -> None:
        for key in ("samples", "tokens", "tokens_per_sample"):
            value = getattr(self, key)
            if value < 1:
                raise ValueError(f"bounds.{key} = {value!r}: must be at least 1")
        if self.tokens_per_sample > self.tokens:
            raise ValueError(
                f"bounds.tokens_per_sample = {self.tokens_per_sample}: exceeds bounds.tokens = {self.tokens}"
            )


@dataclass(frozen=True)
class PackedBatch:
    """T tokens of S samples, the padding sample included; num_samples and num_tokens count the real ones."""

    input_ids: Tensor  # int64[T]
    positions: Tensor  # int64[T], from 0 in each sample
    cu_seqlens: Tensor  # int32[S+1]
    num_samples: int
    num_tokens: int
    max_seqlen: int


def pack(samples: Sequence[Sequence[int]]) -> PackedBatch:
    """Token ids of each sample -> one packed batch in the same order; ValueError for none or an empty one."""
    if not samples:
        raise ValueError("samples: none given")
    lengths = [len(sample) for sample in samples]
    if min(lengths) == 0:
        raise ValueError(f"samples[{lengths.index(0)}]: no tokens")
    num_samples, num_tokens = len(lengths), sum(lengths)
    padding = max(0, MIN_SAMPLES - num_samples)
    lengths += [1] * padding
    input_ids = torch.tensor([*chain.from_iterable(samples), *([PAD_TOKEN] * padding)], dtype=torch.int64)
    cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    length = torch.tensor(lengths, dtype=torch.int64)
    torch.cumsum(length, 0, dtype=torch.int32, out=cu_seqlens[1:])
    starts = torch.repeat_interleave(cu_seqlens[:-1].long(), length)
    positions = torch.arange(len(input_ids), dtype=torch.int64) - starts
    return PackedBatch(input_ids, positions, cu_seqlens, num_samples, num_tokens, max(lengths))
