"""How many waiting requests the next batch takes, by what they are predicted to take and their deadlines.

A larger batch is done sooner than the same requests one after the other, but its first members wait for its
last. So it takes all that fit, unless that costs more deadlines than fewer would: what is counted is who of
the waiting requests would be answered in time, those that come after the batch too, sooner priorities before
later ones. A deadline that no batch can meet counts nowhere. Pure; milliseconds of one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add
from typing import Protocol, TypeAlias

from engine.demand import NOTHING, Demand

MOST_TRIED = 16  # sizes that are compared: a bound on what forming a batch costs the event loop

Predict: TypeAlias = Callable[[Demand], float]  # milliseconds of one batch


class Candidate(Protocol):
    """A waiting request."""

    @property
    def priority(self) -> int: ...
    @property
    def demand(self) -> Demand: ...
    @property
    def expires_ms(self) -> int | None: ...


class Outlook:
    """Waiting requests in their order, the first `most` of which fit a batch; that batch would begin at
    `start_ms`, and what comes after it is packed full, `most_demand` at most."""

    def __init__(
        self, items: Sequence[Candidate], most: int, most_demand: Demand, start_ms: float, predict: Predict
    ) -> None:
        assert 1 <= most <= len(items)
        self._items, self._most_demand, self._start_ms, self._predict = items, most_demand, start_ms, predict
        self._totals = list(accumulate((item.demand for item in items), add))
        self._ends_ms = [start_ms + predict(total) for total in self._totals[:most]]  # of 1, 2, ... requests
        self._priorities = sorted({item.priority for item in items})

    def choose(self) -> int:
        """How many of them to take, at least one."""
        useful = self._useful()
        most = useful[-1]
        tight = self._tight(useful)
        if not tight:
            return most
        sizes = _spread(sorted({1, most, *tight}), MOST_TRIED)
        return max(sizes, key=lambda size: (self.in_time(size), size))

    def in_time(self, size: int) -> tuple[int, ...]:
        """How many deadlines are met after a batch of `size` and full ones for the rest, by priority."""
        met = dict.fromkeys(self._priorities, 0)
        end_ms, first = self._ends_ms[size - 1], 0
        while first < len(self._items):
            for item in self._items[first:size]:
                if item.expires_ms is not None and end_ms < item.expires_ms:
                    met[item.priority] += 1
            first = size
            if first < len(self._items):
                size, took_ms = self._next(first)
                end_ms += took_ms
        return tuple(met.values())

    def _useful(self) -> list[int]:
        """Sizes whose batch is done no later than its members one by one."""
        alone_ms = accumulate(self._predict(item.demand) for item in self._items[: len(self._ends_ms)])
        pairs = zip(self._ends_ms, alone_ms, strict=True)
        return [
            size for size, (end_ms, ms) in enumerate(pairs, 1) if size == 1 or end_ms <= self._start_ms + ms
        ]

    def _tight(self, useful: Sequence[int]) -> set[int]:
        """For each member that the largest useful size makes late, though a smaller one would not: that."""
        found = set()
        end_ms = self._ends_ms[useful[-1] - 1]
        for place, item in enumerate(self._items[: useful[-1]], 1):
            if item.expires_ms is None or end_ms < item.expires_ms:
                continue
            meeting = [size for size in useful if size >= place and self._ends_ms[size - 1] < item.expires_ms]
            found.update(meeting[-1:])
        return found

    def _next(self, first: int) -> tuple[int, float]:
        """Where a full batch that begins with request number `first` ends, and what it takes."""
        before = self._totals[first - 1] if first else NOTHING
        end = first + 1
        while end < len(self._items):
            demand = self._totals[end] - before
            if demand.tokens > self._most_demand.tokens or demand.samples > self._most_demand.samples:
                break
            end += 1
        return end, self._predict(self._totals[end - 1] - before)


def _spread(sizes: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, first and last among them."""
    if len(sizes) <= most:
        return list(sizes)
    return sorted({sizes[round(i * (len(sizes) - 1) / (most - 1))] for i in range(most)})
