"""When lanes that work at once should each take half of the multiprocessors: measured at load, by bucket.

A small batch does not fill the chip: two of them at half the chip each can end sooner than one after the
other on all of it. Measured is what two lanes need for a batch each: one after the other, both at once on the
whole chip, and both at once on half of it. Pure arithmetic; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.runtime.buckets import Buckets
from engine.runtime.cost import interpolate, sizes_to_measure

MOST_TOKENS = 2048  # of a bucket that may gain; above it one batch fills the chip
GAIN = 1.02  # a smaller one is not worth the memory of a second graph, and near what repeats differ by


@dataclass(frozen=True)
class SharedCost:
    """Milliseconds a batch of one size while lanes are busy: alone (one after the other), together (each on
    the whole chip) and halved (each on half of it)."""

    tokens: int
    alone_ms: float
    together_ms: float
    halved_ms: float

    @property
    def gain(self) -> float:
        """How many times sooner a batch is done on half the chip than in the better of the other ways."""
        return min(self.alone_ms, self.together_ms) / self.halved_ms


def small_sizes(buckets: Buckets) -> tuple[int, ...]:
    """Token sizes that may gain, ascending."""
    return tuple(size for size in buckets.tokens if size <= MOST_TOKENS)


def sizes_to_share(buckets: Buckets, most: int = 6) -> tuple[int, ...]:
    """Those of them that are measured."""
    return sizes_to_measure(Buckets(small_sizes(buckets), buckets.samples), most)


def choose_halves(buckets: Buckets, measured: Sequence[SharedCost], gain: float = GAIN) -> tuple[int, ...]:
    """The token sizes that are to have half-chip graphs: where they are sooner by `gain`, between measured
    sizes by what lies between."""
    if not measured:
        return ()
    gains = [(each.tokens, each.gain) for each in measured]
    least, most = gains[0][0], gains[-1][0]
    return tuple(
        size for size in small_sizes(buckets) if least <= size <= most and interpolate(gains, size) >= gain
    )
