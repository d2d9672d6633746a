"""What one request takes of the batch that it is in: by this requests are packed and times predicted.

Immutable; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """tokens: those that the run computes; they choose a bucket, Capacity.tokens bounds them (a prefix
    spares some of a prompt's). samples: places in the run, of Capacity.samples. rows: tokens that decode
    steps compute after that run, one a beam and step."""

    tokens: int
    samples: int
    rows: int = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.tokens + other.tokens, self.samples + other.samples, self.rows + other.rows)

    def __sub__(self, other: Demand) -> Demand:
        return Demand(self.tokens - other.tokens, self.samples - other.samples, self.rows - other.rows)

    @property
    def work(self) -> int:
        """Everything that is computed, in tokens."""
        return self.tokens + self.rows

    def most(self, other: Demand) -> Demand:
        """Of several models that get the same request, what the hungriest takes."""
        return Demand(
            max(self.tokens, other.tokens), max(self.samples, other.samples), max(self.rows, other.rows)
        )


NOTHING = Demand(0, 0)


def total(demands: Iterable[Demand]) -> Demand:
    """Of requests that share a batch, or wait."""
    return sum(demands, NOTHING)
