"""Packed batch: the samples of one or more requests end to end, without padding.

input_ids and positions hold every token that is computed; cu_seqlens says where each segment starts and ends.
A segment is a sample, unless samples share a prefix: then that is a segment of its own, computed once
(engine.prefixes). Plain CPU tensors that nobody changes after `pack`; any thread may hold one.

A compiled package treats sizes 0 and 1 as special, so `pack` adds a one-token segment of its own to a batch
of one. It comes last, is counted nowhere, and LanePool drops its row and those of prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

MIN_SAMPLES = 2  # the smallest size that torch.export keeps symbolic
PAD_TOKEN = 0  # any id of any vocabulary: no other sample sees it
NO_PREFIX = (-1, 0)  # of a segment: no parent, nothing of the constant prefix


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

    @property
    def segments(self) -> int:
        """The most a batch can have, padding apart: a prefix is at least two samples'."""
        return self.samples + self.samples // 2


@dataclass(frozen=True)
class Segment:
    """Tokens that are computed together: a sample, or what of it comes after a prefix, or that prefix.

    position: of its first token in its sample. Before it come `parent`, the place of another segment of the
    batch that has no parent itself (-1: none), and before that the first `constant` tokens of the batch's
    constant prefix.
    """

    ids: Sequence[int]
    position: int = 0
    parent: int = -1
    constant: int = 0


@dataclass(frozen=True)
class PackedBatch:
    """T tokens of S segments, the padding segment included: first one a sample, then those that are prefixes.

    num_samples, num_segments and num_tokens count the real ones; num_tokens are those that are computed.
    """

    input_ids: Tensor  # int64[T]
    positions: Tensor  # int64[T], from 0 in each sample
    cu_seqlens: Tensor  # int32[S+1]
    num_samples: int
    num_segments: int
    num_tokens: int
    max_seqlen: int  # of the whole samples, prefixes included
    prefixes: Tensor | None = None  # int32[S, 2], each segment's (parent, constant); None: no segment has any
    constant: Tensor | None = None  # keys and values [L, 2, P, Hkv, D] of the constant prefix, if one is used


def pack(samples: Sequence[Sequence[int]]) -> PackedBatch:
    """Token ids of each sample -> one packed batch in the same order; ValueError for none or an empty one."""
    return pack_segments([Segment(sample) for sample in samples], len(samples))


def pack_segments(
    segments: Sequence[Segment], num_samples: int, constant: Tensor | None = None
) -> PackedBatch:
    """`num_samples` segments that end a sample each, in order, then the prefixes they name as parents.

    ValueError for no segment or an empty one.
    """
    if not segments:
        raise ValueError("samples: none given")
    lengths = [len(segment.ids) for segment in segments]
    if min(lengths) == 0:
        raise ValueError(f"samples[{lengths.index(0)}]: no tokens")
    num_tokens, max_seqlen = sum(lengths), max(each.position + len(each.ids) for each in segments)
    all_segments = [*segments, *([Segment((PAD_TOKEN,))] * max(0, MIN_SAMPLES - len(segments)))]
    # By numpy: each operation of torch takes longer than this arithmetic, and gives the interpreter away.
    length = np.array([len(each.ids) for each in all_segments])
    ids = np.fromiter(chain.from_iterable(each.ids for each in all_segments), np.int64, int(length.sum()))
    cu_seqlens = np.zeros(len(all_segments) + 1, dtype=np.int32)
    np.cumsum(length, out=cu_seqlens[1:])
    first = np.array([each.position for each in all_segments])
    positions = np.arange(len(ids)) + np.repeat(first - cu_seqlens[:-1], length)
    before = [(each.parent, each.constant) for each in all_segments]
    prefixes = torch.tensor(before, dtype=torch.int32) if any(x != NO_PREFIX for x in before) else None
    tensors = (torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(cu_seqlens))
    counts = (num_samples, len(segments), num_tokens, max_seqlen)
    return PackedBatch(*tensors, *counts, prefixes, constant)
