"""LanePool on CUDA: lanes of captured graphs over one copy of the weights.

Everything is opened and captured at load; then nothing is compiled, captured or allocated while serving.
Launches are made one at a time, by the lane's thread under one lock, so that the driver never sees two
threads at once; waiting holds neither that lock nor the interpreter's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from engine.packed import MIN_SAMPLES, BatchBounds, PackedBatch, pack
from engine.runtime.buckets import make_buckets
from engine.runtime.cost import CostModel, sizes_to_measure
from engine.runtime.graph_lane import CONSTANT_ROWS, GraphLane, Head
from engine.runtime.lanes import LanePool
from engine.runtime.native import Runner

MEASURED_LENGTH = 150  # tokens a sample
_MEASURE_MS = (
    80.0  # of replays a size: with a dozen sizes a second in all, which reaches the card's power cap
)


@dataclass(frozen=True)
class LoadReport:
    """What loading took: seconds, graphs of all lanes, and device bytes by what they hold."""

    seconds: float
    graphs: int
    weights_bytes: int
    lane_bytes: tuple[int, ...]  # pools, buffers and graphs, lane by lane


class GraphLanePool(LanePool):
    """As LanePool; `prepare` a head before serving, or each of its launches counts as a fallback."""

    patience_s = 600.0  # capturing takes longer than opening

    def __init__(
        self,
        package: Path,
        weights: Mapping[str, Tensor],
        bounds: BatchBounds,
        *,
        vocab_size: int,
        device: torch.device,
        lanes: int,
        threads: int = 1,
        no_constant: Tensor | None = None,
    ) -> None:
        self._lanes: list[GraphLane] = []
        self._lane_bytes: list[int] = []
        self._launching, self._seconds = Lock(), 0.0
        super().__init__(
            package, weights, bounds, vocab_size=vocab_size, device=device, lanes=lanes, threads=threads,
            no_constant=no_constant,
        )  # fmt: skip

    def prepare(self, head: Head) -> None:
        """Capture `head` on every lane. Call while no lane has work."""
        self.on_every_lane(lambda: self._alone(self._mine.graphs.capture_head, head))

    @property
    def most_segments(self) -> int:
        return max(self._bounds.samples, MIN_SAMPLES)  # what the largest bucket holds

    @property
    def most_constant(self) -> int:
        return min(super().most_constant, CONSTANT_ROWS)

    @property
    def fallbacks(self) -> int:
        """Launches since load that were not wholly captured."""
        return sum(lane.eager_heads for lane in self._lanes)

    @property
    def load_report(self) -> LoadReport:
        weights = sum(x.numel() * x.element_size() for x in self._weights.values())
        return LoadReport(
            self._seconds, sum(lane.num_graphs for lane in self._lanes), weights, tuple(self._lane_bytes)
        )

    def measure_cost(self) -> CostModel:
        """Sustained milliseconds by bucket on one lane, the others idle; about a second."""
        return self.executor.submit(self._measure).result()

    def hold(self, packed: PackedBatch) -> Callable[[], None]:
        """Fill this lane's buffers with one batch; what it returns enqueues its graph on the caller's current
        stream, for timing while nothing else runs."""
        lane: GraphLane = self._mine.graphs
        return lane.hold(packed)

    def run(self, packed: PackedBatch, head: Head) -> tuple[Tensor, ...]:
        lane: GraphLane | None = getattr(self._mine, "graphs", None)
        if lane is None:
            raise RuntimeError("not a lane's thread: submit the work to LanePool.executor")
        self.check(packed)
        with self._launching:
            results = lane.launch(packed, head)
        lane.wait()
        return tuple(x.clone() for x in results)

    def open_runner(self) -> Runner:
        """A runner of the package for the calling thread, over the shared weights."""
        return self.open_package(self._package)

    def _start(self) -> None:
        with self._launching, torch.cuda.device(self._device):
            self._open_graphs()

    def _open_graphs(self) -> None:
        started, free = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        hidden_size = self._weights["norm.weight"].shape[0]
        lane = GraphLane(
            self.open_runner(),
            stream,
            make_buckets(self._bounds),
            hidden_size,
            self._no_constant,
            self.most_constant,
        )
        lane.capture()
        self._mine.graphs = lane
        self._lanes.append(lane)
        self._seconds += time.monotonic() - started
        self._lane_bytes.append(free - torch.cuda.mem_get_info(self._device)[0])

    def _measure(self) -> CostModel:
        lane: GraphLane = self._mine.graphs
        buckets = make_buckets(self._bounds)
        length = min(MEASURED_LENGTH, self._bounds.tokens_per_sample)
        points = []
        with self._launching:
            for tokens in sizes_to_measure(buckets):
                count = min(max(1, -(-tokens // length)), self._bounds.samples)
                ids = torch.randint(0, self._vocab_size, (min(tokens, count * length),))
                packed = pack([chunk.tolist() for chunk in ids.chunk(count)])
                replays = max(3, round(_MEASURE_MS / lane.measure_ms(packed, 1)))
                points.append((tokens, lane.measure_ms(packed, replays)))
        return CostModel(buckets, tuple(points))

    def _alone(self, capture: Callable[[Head], None], head: Head) -> None:
        device: AbstractContextManager[None] = torch.cuda.device(self._device)
        with self._launching, device:
            capture(head)
