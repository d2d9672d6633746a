"""How long a pipeline will need for what waits: a straight line through the batches seen lately.

ms = base + per_token * tokens (those of decode steps too), fitted by least squares whose weights fade, so
that it follows a change of load. Pure arithmetic in milliseconds; written by the event loop's thread alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.demand import Demand

FADE = 0.95  # weight of a batch against the next one: about the last twenty count


@dataclass(frozen=True)
class Line:
    """Time of one batch."""

    base_ms: float
    per_token_ms: float


class ServiceTime:
    """Learns from each batch; `line` is None until the first."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._line: Line | None = None

    @property
    def line(self) -> Line | None:
        return self._line

    def observe(self, tokens: int, milliseconds: float) -> None:
        """One batch of this many tokens took this long."""
        self._weight = self._weight * FADE + 1.0
        self._x = self._x * FADE + tokens
        self._y = self._y * FADE + milliseconds
        self._xx = self._xx * FADE + tokens * tokens
        self._xy = self._xy * FADE + tokens * milliseconds
        self._line = self._fit()

    def wait_ms(self, ahead: Demand, budget: Demand, slots: int) -> float | None:
        """Until all of `ahead` is through, `slots` batches at a time; None without data."""
        if self._line is None:
            return None
        batches = num_batches(ahead, budget)
        work = batches * self._line.base_ms + ahead.work * self._line.per_token_ms
        return max(work / slots, work / batches)

    def _fit(self) -> Line:
        spread = self._weight * self._xx - self._x * self._x
        if spread <= 1e-6 * self._weight * self._xx:  # all batches alike: no slope to be seen
            return Line(self._y / self._weight, 0.0)
        slope = (self._weight * self._xy - self._x * self._y) / spread
        if slope <= 0:
            return Line(self._y / self._weight, 0.0)
        base = (self._y - slope * self._x) / self._weight
        return Line(base, slope) if base >= 0 else Line(0.0, self._xy / self._xx)


def num_batches(waiting: Demand, budget: Demand) -> int:
    """In how many it fits, at least; each holds as much as `budget`."""
    return max(-(-waiting.tokens // budget.tokens), -(-waiting.samples // budget.samples), 1)
