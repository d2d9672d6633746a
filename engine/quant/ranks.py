"""How many of float32's winners a search in less precision finds, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOP = 10


@dataclass(frozen=True)
class Winners:
    """Best first: tokens of each sequence, and its score."""

    tokens: list[tuple[int, ...]]
    scores: list[float]


@dataclass(frozen=True)
class Ranks:
    """Means over prompts, against float32.

    winners: share of float32's W sequences that were found; top: of its first TOP among the first TOP found;
    best: share of prompts with the same first sequence; order: share of the pairs of common sequences that
    are in float32's order; score_shift: mean |difference| of a common sequence's score, a sum of D + 1
    log-probabilities.
    """

    prompts: int
    width: int
    steps: int
    winners: float
    top: float
    best: float
    order: float
    score_shift: float


def compare_ranks(reference: Sequence[Winners], found: Sequence[Winners]) -> Ranks:
    """Both of the same prompts, in the same order; at least one."""
    rows = [_compare(theirs, ours) for theirs, ours in zip(reference, found, strict=True)]
    winners, top, best, order, shift = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    first = reference[0].tokens
    return Ranks(len(rows), len(first), len(first[0]) - 1, winners, top, best, order, shift)


def _compare(theirs: Winners, ours: Winners) -> tuple[float, float, float, float, float]:
    places = {tokens: rank for rank, tokens in enumerate(ours.tokens)}
    common = [(rank, places[tokens]) for rank, tokens in enumerate(theirs.tokens) if tokens in places]
    top = min(TOP, len(theirs.tokens))
    shared_top = len(set(theirs.tokens[:top]) & set(ours.tokens[:top])) / top
    shifts = [abs(theirs.scores[rank] - ours.scores[place]) for rank, place in common]
    pairs = [(a[1] < b[1]) for i, a in enumerate(common) for b in common[i + 1 :]]
    return (
        len(common) / len(theirs.tokens),
        shared_top,
        float(theirs.tokens[0] == ours.tokens[0]),
        sum(pairs) / len(pairs) if pairs else 1.0,
        sum(shifts) / len(shifts) if shifts else 0.0,
    )
