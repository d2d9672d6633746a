"""How long operations take on a device as they are served: in replays of a captured graph.

Nothing else may run on the device meanwhile. A timer holds its graph and whatever its operations read.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from engine.runtime.capture import Capture
from engine.runtime.quiet_collector import quiet_collector

RUNS, REPLAYS = 20, 5  # of the operations in a graph, of the graph
TURNS = 3

Run = Callable[[], object]


class ReplayTimer:
    """`run`: enqueues the operations, here and never later."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        with torch.cuda.device(device), torch.no_grad(), quiet_collector():
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the inputs were made there
            with torch.cuda.stream(self._stream):
                run()
                self._stream.synchronize()
                with Capture(torch.cuda.graph_pool_handle(), self._stream) as graph:
                    for _ in range(RUNS):
                        run()
        self._graph = graph

    def us(self) -> float:
        """Microseconds a run, the mean of RUNS x REPLAYS in a row."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._graph.replay()
            start.record(self._stream)
            for _ in range(REPLAYS):
                self._graph.replay()
            end.record(self._stream)
            end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return 1e3 * elapsed / (RUNS * REPLAYS)


def compare_us(one: Run, other: Run, device: torch.device) -> tuple[float, float]:
    """Microseconds a run of either, medians of turns, so that a clock that drifts moves both."""
    timers = ReplayTimer(one, device), ReplayTimer(other, device)
    turns = [(timers[0].us(), timers[1].us()) for _ in range(TURNS)]
    first, second = (statistics.median(column) for column in zip(*turns, strict=True))
    return first, second
