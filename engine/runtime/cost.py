"""Cost model: milliseconds that one lane's GPU takes for a bucket, measured at load, back to back.

"Sustained" is what serving sees: a card at its power cap runs about a tenth slower than in a single burst.
Between measured sizes the cost is taken as linear. Immutable; any thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from engine.runtime.buckets import Buckets


class Cost(Protocol):
    """What a batch of so many computed tokens takes on a device that has nothing else to do, milliseconds."""

    def predict_ms(self, num_tokens: int) -> float: ...


@dataclass(frozen=True)
class CostSum:
    """Models that each get every batch, on one device."""

    models: tuple[Cost, ...]

    def predict_ms(self, num_tokens: int) -> float:
        return sum(model.predict_ms(num_tokens) for model in self.models)


@dataclass(frozen=True)
class CostModel:
    """`points`: (tokens, ms) ascending in tokens, at least one; tokens are those of a bucket."""

    buckets: Buckets
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points or list(self.points) != sorted(set(self.points)):
            raise ValueError(f"points = {self.points!r}: at least one, ascending")

    def predict_ms(self, num_tokens: int) -> float:
        """GPU time of a batch, padding included; ValueError over the largest bucket."""
        at = bisect_left(self.buckets.tokens, num_tokens)
        if at == len(self.buckets.tokens):
            raise ValueError(f"tokens = {num_tokens}: over the largest bucket, {self.buckets.tokens[-1]}")
        return self._by_bucket[at]

    def most_tokens(self, budget_ms: float) -> int:
        """The largest bucket that is predicted to take at most `budget_ms`; 0 where none does."""
        pairs = zip(self.buckets.tokens, self._by_bucket, strict=True)
        return max((tokens for tokens, ms in pairs if ms <= budget_ms), default=0)

    @cached_property
    def _by_bucket(self) -> tuple[float, ...]:
        return tuple(max(interpolate(self.points, tokens), 0.0) for tokens in self.buckets.tokens)


def interpolate(points: Sequence[tuple[int, float]], x: int) -> float:
    """Linear between points, ascending in x; outside as between the two nearest."""
    if len(points) == 1:
        return points[0][1]
    at = min(max(bisect_left(points, (x,)), 1), len(points) - 1)
    (low, low_y), (high, high_y) = points[at - 1], points[at]
    return low_y + (x - low) / (high - low) * (high_y - low_y)


def sizes_to_measure(buckets: Buckets, most: int = 12) -> tuple[int, ...]:
    """Token sizes spread evenly over the buckets, smallest and largest among them."""
    count = min(most, len(buckets.tokens))
    if count == 1:
        return buckets.tokens[-1:]
    last = len(buckets.tokens) - 1
    return tuple(sorted({buckets.tokens[round(i * last / (count - 1))] for i in range(count)}))
