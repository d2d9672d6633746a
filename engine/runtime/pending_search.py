"""A captured search from its launch to its results, in one of the two sets of pinned memory that a lane has.

Two, so that a lane's thread can fill in and enqueue its next batch before another thread has copied the last
one's results out. A set is taken by the lane's thread and given back by whoever takes the results; a third
batch waits for the first one's set.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from engine.beam.frontier import Frontier
from engine.runtime.beam_transfer import HostInputs, HostResults

PATIENCE_S = 60.0  # whoever takes results needs milliseconds
SLOWER = 1.02  # what is expected of a graph rises by so much a run at most, and falls at once


class HostSide:
    """One set: bytes that graphs of all buckets share, and the events around a batch."""

    def __init__(self) -> None:
        self.inputs, self.results = (torch.empty(0, dtype=torch.uint8, pin_memory=True) for _ in range(2))
        self.begun, self.done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._taken = Lock()

    def take(self) -> None:
        """Waits while results of the batch before are in it; TimeoutError where nobody takes them."""
        if not self._taken.acquire(timeout=PATIENCE_S):
            raise TimeoutError(f"results of a search were not taken for {PATIENCE_S:.0f} s")

    def give_back(self) -> None:
        self._taken.release()


@dataclass(frozen=True)
class Ends:
    """One bucket's views of a side: what a batch fills, and where its results land."""

    side: HostSide
    inputs: HostInputs
    source: Tensor
    target: Tensor
    results: HostResults


@dataclass
class Pace:
    """The least that graphs took which differ in prompts' tokens alone; None before the first run."""

    least_s: float | None = None


class CapturedSearch:
    """A graph, what it reads and writes on the device, and its memory on the host, twice."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, inputs: Tensor, results: Tensor, ends: list[Ends], pace: Pace
    ) -> None:
        self.graph, self.ends = graph, ends
        self._inputs, self._results, self._pace = inputs, results, pace
        self._took_s: float | None = None

    @property
    def expected_s(self) -> float | None:
        """Of the device, for one run; None where neither this graph has run nor one like it."""
        return self._pace.least_s if self._took_s is None else self._took_s

    def enqueue(self, place: int = 0) -> None:
        """Everything of the batch that was filled in there, on the current stream."""
        ends = self.ends[place]
        self._inputs.copy_(ends.source, non_blocking=True)
        self.graph.replay()
        ends.target.copy_(self._results, non_blocking=True)

    def learn(self, seconds: float) -> None:
        """What one run took: the least is kept, but a device that has become slower is believed in time."""
        self._took_s = seconds if self._took_s is None else min(seconds, self._took_s * SLOWER)
        least_s = self._pace.least_s
        self._pace.least_s = seconds if least_s is None else min(seconds, least_s)


class PendingSearch:
    """Was launched; has its side until `result`, which is called once, on any thread."""

    def __init__(self, captured: CapturedSearch, ends: Ends, prompts: int, width: int) -> None:
        self.captured, self.side = captured, ends.side
        self._room = ends.results.room(prompts, width)

    def wait(self) -> None:
        """Until the results are there; does not hold the interpreter lock."""
        self.side.done.synchronize()

    def result(self) -> Frontier:
        """A copy of the results once they are there."""
        try:
            self.wait()
            self.captured.learn(1e-3 * self.side.begun.elapsed_time(self.side.done))
            return self._room.fill()
        finally:
            self.side.give_back()
