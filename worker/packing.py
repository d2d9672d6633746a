"""How many waiting requests the next batch takes, by what they are predicted to take and their deadlines.

A larger batch is done sooner than the same requests one after the other, but its first members wait for its
last. So it takes all that fit, unless fewer keep more deadlines: counted are those of all that wait, of whom
comes after the batch too, sooner priorities before later ones. A deadline that no batch can meet counts
nowhere. Since two batches take longer than one, a cut also costs those that are still to come: the more, the
nearer what waits is to a full batch. Under load, where the head is always late, full batches answer most.
Pure; milliseconds of one clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add
from typing import Protocol, TypeAlias

from engine.demand import Demand

MOST_TRIED = 6  # sizes that are compared: a bound on what forming a batch costs the event loop

Predict: TypeAlias = Callable[[Demand], float]  # milliseconds of one batch


class Candidate(Protocol):
    """A waiting request."""

    @property
    def priority(self) -> int: ...
    @property
    def demand(self) -> Demand: ...
    @property
    def expires_ms(self) -> int | None: ...


Look: TypeAlias = Callable[[], Sequence[Candidate]]


@dataclass(frozen=True)
class Outcome:
    """How many deadlines are met, by priority, and when the last request is through."""

    in_time: tuple[int, ...]
    end_ms: float


class Outlook:
    """Waiting requests in their order that fit a batch; it would begin at `start_ms`. `look` tells of those
    behind. What comes after that batch is packed full, within `budget`."""

    def __init__(
        self, fitting: Sequence[Candidate], look: Look, budget: Demand, start_ms: float, predict: Predict
    ) -> None:
        assert fitting
        self._items, self._look = fitting, look
        self._budget, self._start_ms, self._predict = budget, start_ms, predict
        self._totals = list(accumulate((item.demand for item in fitting), add))
        self._ends_ms = [start_ms + predict(demand) for demand in self._totals]  # of 1, 2, ... requests

    def choose(self) -> int:
        """How many of them to take, at least one."""
        useful = self._useful()
        most = useful[-1]
        tight = self._tight(useful)
        if not tight:
            return most
        full = best = self.after(most)
        chosen = most
        for size in reversed(_spread(sorted({1, *tight}), MOST_TRIED)):
            found = self.after(size)
            if found.in_time > best.in_time and self._gain(found, full) > 0:
                chosen, best = size, found
        return chosen

    def after(self, size: int) -> Outcome:
        """A batch of `size`, then full ones for the rest."""
        items, totals = self._all
        met = dict.fromkeys(sorted({item.priority for item in items}), 0)
        end_ms, first = self._ends_ms[size - 1], 0
        while first < len(items):
            for item in items[first:size]:
                if item.expires_ms is not None and end_ms < item.expires_ms:
                    met[item.priority] += 1
            first = size
            if first < len(items):
                size = self._full_end(first)
                end_ms += self._predict(totals[size - 1] - totals[first - 1])
        return Outcome(tuple(met.values()), end_ms)

    def _gain(self, cut: Outcome, full: Outcome) -> float:
        """Deadlines of the soonest priority for which it makes a difference, less those that are lost among
        requests still to come: as many as full batches serve in the time that the cut takes longer, where as
        much waits as fills one; fewer where less does."""
        both = zip(cut.in_time, full.in_time, strict=True)
        met = next(ours - theirs for ours, theirs in both if ours != theirs)
        total, most = self._all[1][-1], len(self._ends_ms)
        load = max(total.tokens / self._budget.tokens, total.samples / self._budget.samples)
        each_ms = (self._ends_ms[-1] - self._start_ms) / most
        lost = min(1.0, load) * (cut.end_ms - full.end_ms) / each_ms if each_ms else 0.0
        return met - lost

    def _useful(self) -> list[int]:
        """Sizes whose batch is done no later than its members one by one."""
        alone_ms = accumulate(self._predict(item.demand) for item in self._items)
        pairs = zip(self._ends_ms, alone_ms, strict=True)
        return [
            size for size, (end_ms, ms) in enumerate(pairs, 1) if size == 1 or end_ms <= self._start_ms + ms
        ]

    def _tight(self, useful: Sequence[int]) -> set[int]:
        """For each member that the largest useful size makes late, though a smaller one would not: that."""
        found = set()
        ends_ms = [self._ends_ms[size - 1] for size in useful]
        # Of each size and all larger ones the soonest end: ascending, so that one can search in it.
        soonest_ms = list(accumulate(reversed(ends_ms), min))[::-1]
        for place, item in enumerate(self._items[: useful[-1]], 1):
            if item.expires_ms is not None and item.expires_ms <= ends_ms[-1]:
                at = bisect_left(soonest_ms, item.expires_ms) - 1
                if at >= 0 and useful[at] >= place:
                    found.add(useful[at])
        return found

    @cached_property
    def _all(self) -> tuple[list[Candidate], list[Demand]]:
        """With those behind, and what all up to each of them take together."""
        behind = self._look()
        totals = accumulate((item.demand for item in behind), add, initial=self._totals[-1])
        return [*self._items, *behind], [*self._totals[:-1], *totals]

    def _full_end(self, first: int) -> int:
        """Where a full batch that begins with request number `first`, not the first of all, ends."""
        totals = self._all[1]
        end = first + 1
        while end < len(totals):
            demand = totals[end] - totals[first - 1]
            if demand.tokens > self._budget.tokens or demand.samples > self._budget.samples:
                break
            end += 1
        return end


def _spread(sizes: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, first and last among them."""
    if len(sizes) <= most:
        return list(sizes)
    return sorted({sizes[round(i * (len(sizes) - 1) / (most - 1))] for i in range(most)})
