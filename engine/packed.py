"""Packed batch: the samples of one or more requests end to end, without padding.

input_ids and positions hold every token that is computed; cu_seqlens says where each segment starts and ends.
A segment is a sample, unless samples share a prefix: then that is a segment of its own, computed once
(engine.prefixes). Plain CPU tensors over arrays that nobody changes after `pack`; any thread may hold one.

A compiled package treats sizes 0 and 1 as special, so `pack` adds a one-token segment of its own to a batch
of one. It comes last, is counted nowhere, and LanePool drops its row and those of prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import add, sub

import numpy as np
import torch
from numpy.typing import NDArray
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

    token_ids: NDArray[np.int64]  # [T]
    token_positions: NDArray[np.int64]  # [T], from 0 in each sample
    borders: NDArray[np.int32]  # [S+1]
    num_samples: int
    num_segments: int
    num_tokens: int
    max_seqlen: int  # of the whole samples, prefixes included
    prefixes: Tensor | None = None  # int32[S, 2], each segment's (parent, constant); None: no segment has any
    constant: Tensor | None = None  # keys and values [L, 2, P, Hkv, D] of the constant prefix, if one is used

    @property
    def input_ids(self) -> Tensor:
        """`token_ids`, as a package and a decoder take them; likewise the next two."""
        return torch.from_numpy(self.token_ids)

    @property
    def positions(self) -> Tensor:
        return torch.from_numpy(self.token_positions)

    @property
    def cu_seqlens(self) -> Tensor:
        return torch.from_numpy(self.borders)


def pack(samples: Sequence[Sequence[int]]) -> PackedBatch:
    """Token ids of each sample -> one packed batch in the same order; ValueError for none or an empty one."""
    return _pack(samples, [0] * len(samples), None, len(samples), None)


def pack_segments(
    segments: Sequence[Segment], num_samples: int, constant: Tensor | None = None
) -> PackedBatch:
    """`num_samples` segments that end a sample each, in order, then the prefixes they name as parents.

    ValueError for no segment or an empty one.
    """
    before = [(each.parent, each.constant) for each in segments]
    some = any(each != NO_PREFIX for each in before)
    ids, first = [each.ids for each in segments], [each.position for each in segments]
    return _pack(ids, first, before if some else None, num_samples, constant)


def _pack(
    ids: Sequence[Sequence[int]],
    first: Sequence[int],
    before: Sequence[tuple[int, int]] | None,
    num_samples: int,
    constant: Tensor | None,
) -> PackedBatch:
    """Of each segment its tokens, the position of the first of them, and what comes before, if any has that.

    Between two batches a processor forgets: each kind of operation, torch's and numpy's alike, takes some 10
    us at its first call. So what is counted by segment is plain Python, by token a few calls of numpy.
    """
    if not ids:
        raise ValueError("samples: none given")
    lengths = [len(each) for each in ids]
    if min(lengths) == 0:
        raise ValueError(f"samples[{lengths.index(0)}]: no tokens")
    counts = (num_samples, len(ids), sum(lengths), max(map(add, first, lengths)))
    padding = max(0, MIN_SAMPLES - len(ids))
    lengths += [1] * padding
    borders = [0, *accumulate(lengths)]
    padded = chain(chain.from_iterable(ids), repeat(PAD_TOKEN, padding))
    token_ids = np.fromiter(padded, np.int64, borders[-1])
    shifts = list(map(sub, borders, [*first, *[0] * padding]))  # places in the batch less positions
    positions = np.arange(borders[-1]) - np.repeat(shifts, lengths)
    prefixes = None
    if before is not None:
        prefixes = torch.tensor([*before, *[NO_PREFIX] * padding], dtype=torch.int32)
    return PackedBatch(token_ids, positions, np.array(borders, dtype=np.int32), *counts, prefixes, constant)
