"""When batches of one pipeline will be done: by the engine's cost model, or without one by what was seen.

A cost model is of a device with one batch after the other: a batch begins when those handed over before are
through, and what a batch takes longer than that on the average (the head, the host, other pipelines' work) is
learned. Without one the line of worker.estimate predicts, in which company and waiting are contained. Pure
arithmetic in milliseconds of one clock; used by the event loop's thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.demand import NOTHING, Demand, total
from engine.runtime.cost import Cost
from worker.estimate import FADE, ServiceTime, num_batches
from worker.packing import Candidate, Look, Outlook


@dataclass(eq=False)
class Running:
    """A batch that was handed over."""

    demand: Demand
    began_ms: float
    cost_ms: float  # of the device, predicted
    end_ms: float  # predicted, without the surcharge
    turned: bool = False  # its lane needs the next one: all but through


class Forecast:
    """`budget`: the most of a batch; `slots`: batches under way at once."""

    def __init__(self, budget: Demand, slots: int, cost: Cost | None) -> None:
        self._budget, self._slots, self._cost = budget, slots, cost
        self._service = ServiceTime()
        self._running: set[Running] = set()
        self._free_ms = 0.0  # when the device is through with them, predicted
        self._late_ms = self._weight = 0.0  # fading sums

    def choose(self, fitting: Sequence[Candidate], look: Look, clock_ms: float, now_ms: float) -> int:
        """How many of the requests that fit a batch one should take that is handed over now; `look` tells of
        those behind. `clock_ms`: now, on the clock of their deadlines."""
        if self._cost is None and self._service.line is None:
            return len(fitting)
        start_ms = clock_ms + self.left_ms(now_ms)
        return Outlook(fitting, look, self._budget, start_ms, self.batch_ms).choose()

    def batch_ms(self, demand: Demand) -> float:
        """From when it may begin to its results; 0 where nothing is known."""
        if self._cost is not None:
            return self._device_ms(demand.tokens) + self._surcharge_ms
        line = self._service.line
        return 0.0 if line is None else line.base_ms + line.per_token_ms * demand.work

    def left_ms(self, now_ms: float) -> float:
        """Until a batch that is handed over now may begin."""
        return 0.0 if self._cost is None else max(0.0, self._free_ms - now_ms)

    def wait_ms(self, waiting: Demand, now_ms: float) -> float | None:
        """Until all of `waiting` is through, behind what runs; None without data."""
        if self._cost is None:
            ahead = total(each.demand for each in self._running if not each.turned) + waiting
            return self._service.wait_ms(ahead, self._budget, self._slots)
        batches = num_batches(waiting, self._budget)
        each_ms = self._device_ms(-(-waiting.tokens // batches))
        return self.left_ms(now_ms) + batches * each_ms + self._surcharge_ms

    def begin(self, demand: Demand, now_ms: float) -> Running:
        """A batch is handed over."""
        cost_ms = self._device_ms(demand.tokens)
        self._free_ms = max(self._free_ms, now_ms) + cost_ms
        running = Running(demand, now_ms, cost_ms, self._free_ms)
        self._running.add(running)
        return running

    def end(self, running: Running, now_ms: float, ran: Demand = NOTHING) -> None:
        """It is through. `ran`: what of it reached a model; from nothing, nothing is learned."""
        self._running.discard(running)
        left_ms = sum(each.cost_ms for each in self._running)
        self._free_ms = min(self._free_ms, now_ms + left_ms)
        if ran.tokens == 0:
            return
        self._service.observe(ran.work, now_ms - running.began_ms)
        self._weight = self._weight * FADE + 1.0
        self._late_ms = self._late_ms * FADE + now_ms - running.end_ms

    @property
    def _surcharge_ms(self) -> float:
        return max(0.0, self._late_ms / self._weight) if self._weight else 0.0

    def _device_ms(self, tokens: int) -> float:
        if self._cost is None:
            return 0.0
        return self._cost.predict_ms(max(1, min(tokens, self._budget.tokens)))
