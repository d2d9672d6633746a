"""Prefixes: which tokens of a batch are computed once instead of once a sample. Exact, decided on token ids.

constant prefix: what every prompt of a pipeline starts with; its keys and values are computed at load.
request prefix: what all samples of one request share beyond that; one segment of the packed batch.
Every sample keeps at least its last token to itself, since that one is read. Nothing outlives a batch but
the constant prefix. Pure functions over immutable values; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from engine.demand import Demand
from engine.packed import BatchBounds, PackedBatch, Segment, pack_segments

Ids = tuple[int, ...]


@dataclass(frozen=True)
class ConstantPrefix:
    """Token ids [P] and their keys and values [L, 2, P, Hkv, D], on the artifact's device."""

    ids: Ids
    keys_values: Tensor


@dataclass(frozen=True)
class Rules:
    """When a prefix pays. Tokens: a shorter one is computed with each sample.

    A prefix costs a second attention for every sample after it, and its segment a row in the last layer. On a
    CPU the shortest tried, 4 tokens of two samples, still gained 4%, 8 tokens 5% (tools/bench/RESULTS.md).
    """

    min_constant: int = 8
    min_shared: int = 8
    min_saved: int = 8  # by a request prefix: its tokens times the samples that do not compute it


SHARE_ALL = Rules(1, 1, 1)
# With 8-bit matrices the constant prefix is there for the answers: the first tokens carry values a hundred
# times larger than the rest, so that however few they are, they are computed at load, in full precision.
EIGHT_BITS = Rules(min_constant=1)


@dataclass(frozen=True)
class Saved:
    """Tokens of a request that were not computed, by what spared them."""

    constant: int = 0
    request: int = 0

    def __add__(self, other: Saved) -> Saved:
        return Saved(self.constant + other.constant, self.request + other.request)


NOTHING_SAVED = Saved()


@dataclass(frozen=True)
class Split:
    """One request's samples: sample i begins with constant[i] tokens of the constant prefix; where `shared`
    is not 0, all continue alike up to their token number `shared`."""

    constant: tuple[int, ...]
    shared: int = 0

    @property
    def saved(self) -> Saved:
        shared = self.shared - self.constant[0] if self.shared else 0
        return Saved(sum(self.constant), shared * (len(self.constant) - 1))


def split(samples: Sequence[Ids], constant: Ids, rules: Rules) -> Split:
    """What the samples of one request share with the constant prefix and with each other."""
    common = 0
    if len(samples) > 1:
        # Whatever the least and the greatest have in common, all that lie between them have too.
        common = min(common_length(min(samples), max(samples)), min(map(len, samples)) - 1)
    start = common_length(constant, samples[0][:common])
    if start == common:  # no more than the constant prefix
        ends = [min(common_length(constant, sample), len(sample) - 1) for sample in samples]
        return Split(tuple(end if end >= rules.min_constant else 0 for end in ends))
    if start < rules.min_constant:
        start = 0
    long_enough = common - start >= rules.min_shared
    pays = long_enough and (common - start) * (len(samples) - 1) >= rules.min_saved
    return Split((start,) * len(samples), common if pays else 0)


def pack_split(
    requests: Sequence[Sequence[Ids]], splits: Sequence[Split], constant: ConstantPrefix | None
) -> PackedBatch:
    """One packed batch of all samples in order; prefixes of requests come after them."""
    num_samples = sum(map(len, requests))
    own: list[Segment] = []
    shared: list[Segment] = []
    for samples, each in zip(requests, splits, strict=True):
        parent = -1
        if each.shared:
            start = each.constant[0]
            parent = num_samples + len(shared)
            shared.append(Segment(samples[0][start : each.shared], start, -1, start))
        for sample, count in zip(samples, each.constant, strict=True):
            begin = each.shared or count
            own.append(Segment(sample[begin:], begin, parent, count))
    used = any(any(each.constant) for each in splits)
    assert not used or constant is not None
    return pack_segments(
        [*own, *shared], num_samples, constant.keys_values if used and constant is not None else None
    )


@dataclass(frozen=True)
class Prefixes:
    """How one node packs its batches; without rules every sample is computed whole."""

    constant: ConstantPrefix | None = None
    rules: Rules | None = None
    most_segments: int | None = None  # of a batch; requests beyond it share nothing among their samples

    def pack(self, requests: Sequence[Sequence[Ids]]) -> tuple[PackedBatch, list[Saved]]:
        """All samples of all requests in order, and what that saved each request."""
        if self.rules is None:
            splits = [Split((0,) * len(samples)) for samples in requests]
        else:
            constant = self.constant.ids if self.constant is not None else ()
            splits = [split(samples, constant, self.rules) for samples in requests]
            splits = self._within(splits)
        return pack_split(requests, splits, self.constant), [each.saved for each in splits]

    def count(self, samples: Sequence[Ids]) -> tuple[int, int]:
        """Tokens that are computed for one request, and segments they are in, where a batch has room for all
        of its prefixes."""
        num_tokens = sum(map(len, samples))
        if self.rules is None:
            return num_tokens, len(samples)
        constant = self.constant.ids if self.constant is not None else ()
        found = split(samples, constant, self.rules)
        saved = found.saved
        return num_tokens - saved.constant - saved.request, len(samples) + bool(found.shared)

    def demand(self, samples: Sequence[Ids], bounds: BatchBounds) -> Demand:
        """What one request takes of a batch within `bounds`: a prefix counts as a sample where there may be
        no room for it beside all of them."""
        num_tokens, num_segments = self.count(samples)
        has_room = self.most_segments is None or self.most_segments >= bounds.segments
        return Demand(num_tokens, len(samples) if has_room else num_segments)

    def _within(self, splits: list[Split]) -> list[Split]:
        if self.most_segments is None:
            return splits
        room = self.most_segments - sum(len(each.constant) for each in splits)
        kept = []
        for each in splits:
            room -= bool(each.shared)
            kept.append(each if room >= 0 else Split(each.constant))
        return kept


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
