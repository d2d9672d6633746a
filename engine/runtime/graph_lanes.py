"""LanePool on CUDA: lanes of captured graphs over one copy of the weights.

Everything is opened, captured and measured at load; then nothing is compiled, captured or allocated while
serving. Launches are made one at a time, by the lane's thread under one lock, so that the driver never sees
two threads at once; waiting holds neither that lock nor the interpreter's. No thread of its own launches for
all lanes: handing a batch over and its results back would each wait for the interpreter once more, and the
thread that waits for a lane has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

from engine.ops.hopper.stack import num_sms
from engine.packed import MIN_SAMPLES, BatchBounds, PackedBatch, pack
from engine.runtime.buckets import make_buckets
from engine.runtime.capture import copy_out, pinned_like
from engine.runtime.cost import CostModel
from engine.runtime.graph_lane import CONSTANT_ROWS, GraphLane, Head
from engine.runtime.lanes import LanePool
from engine.runtime.launches import LaunchReport, report
from engine.runtime.load_report import LoadReport
from engine.runtime.measuring import measure_cost, measure_sharing
from engine.runtime.native import Runner
from engine.runtime.sharing import SharedCost, choose_halves, sizes_to_share

MEASURED_LENGTH = 150  # tokens a sample
T = TypeVar("T")


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
        self.launching = Lock()
        self._buckets = make_buckets(bounds)
        self._sharing: tuple[SharedCost, ...] = ()
        self._shared_tokens: tuple[int, ...] = ()
        super().__init__(
            package, weights, bounds, vocab_size=vocab_size, device=device, lanes=lanes, threads=threads,
            no_constant=no_constant,
        )  # fmt: skip
        self._cost = self._load(self.measure_cost)

    def share(self) -> None:
        """Lanes that work at once take half of the multiprocessors each, in the small buckets where that
        measured faster. Only for a package whose kernels heed sm_limit."""
        if self.num_lanes > 1:
            self._load(self._share)

    def prepare(self, head: Head) -> None:
        """Capture `head` on every lane. Call while no lane has work."""

        def capture() -> None:
            with self.alone() as lane:
                lane.capture_head(head)

        self.on_every_lane(capture)

    @property
    def this_lane(self) -> GraphLane:
        """The calling thread's; RuntimeError where it is none of the lanes'."""
        lane: GraphLane | None = getattr(self._mine, "graphs", None)
        if lane is None:
            raise RuntimeError("not a lane's thread: submit the work to LanePool.executor")
        return lane

    @contextmanager
    def alone(self) -> Iterator[GraphLane]:
        """The calling thread's lane, while no other one launches or captures."""
        with self.launching, torch.cuda.device(self._device):
            yield self.this_lane

    @property
    def this_place(self) -> int:
        """Which of the lanes the calling thread's is, in load_report's order."""
        return self._lanes.index(self.this_lane)

    @property
    def most_segments(self) -> int:
        return max(self._bounds.samples, MIN_SAMPLES)  # what the largest bucket holds

    @property
    def most_constant(self) -> int:
        return min(super().most_constant, CONSTANT_ROWS)

    @property
    def cost(self) -> CostModel:
        return self._cost

    @property
    def fallbacks(self) -> int:
        """Launches since load that were not wholly captured."""
        return sum(lane.eager_heads for lane in self._lanes)

    @property
    def load_report(self) -> LoadReport:
        return LoadReport(
            self._seconds,
            sum(lane.num_graphs for lane in self._lanes),
            self._weights_bytes,
            tuple(self._lane_bytes),
            self._shared_tokens,
            self._sharing,
        )

    @property
    def launch_report(self) -> LaunchReport:
        """How long launches since load held the interpreter: processor time of Python's part."""
        return report(lane.meter for lane in self._lanes)

    def measure_cost(self) -> CostModel:
        """Sustained milliseconds by bucket on one lane, the others idle; about a second. Was done at load:
        `cost`."""
        return self._measure(lambda: measure_cost(self._lanes[0], self._buckets, self._sample_batch))

    def hold(self, packed: PackedBatch, shared: bool = False) -> Callable[[], None]:
        """Fill this lane's buffers with one batch; what it returns enqueues its graph on the caller's current
        stream, for timing while nothing else runs. `shared`: as serving does beside another lane."""
        return self.this_lane.hold(packed, shared)

    def run(self, packed: PackedBatch, head: Head) -> tuple[Tensor, ...]:
        lane = self.this_lane
        self.check(packed)
        lane.busy = True
        try:
            with self.launching:
                crowded = any(other.busy for other in self._lanes if other is not lane)
                results = lane.launch(packed, head, shared=crowded)
            lane.wait()
        finally:
            lane.busy = False
        return tuple(x.clone() for x in results)

    def compute(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """As LanePool's: launched by Python, captured nowhere."""
        lane = self.this_lane
        with self.launching, torch.inference_mode(), torch.cuda.stream(lane.stream):
            values = work()
            results = tuple(map(pinned_like, values))
            copy_out(values, results)
        lane.stream.synchronize()
        return results

    def open_runner(self) -> Runner:
        """A runner of the package for the calling thread, over the shared weights."""
        return self.open_package(self._package)

    def _start(self) -> None:
        with self.launching, torch.cuda.device(self._device):
            self._open_graphs()

    def _open_graphs(self) -> None:
        free = torch.cuda.mem_get_info(self._device)[0]
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        hidden_size = self._weights["norm.weight"].shape[0]
        lane = GraphLane(
            self.open_runner(), stream, self._buckets, hidden_size, self._no_constant, self.most_constant
        )
        lane.capture()
        self._mine.graphs = lane
        self._lanes.append(lane)
        self._lane_bytes.append(free - torch.cuda.mem_get_info(self._device)[0])

    def _share(self) -> None:
        """Measure sharing with graphs of a few sizes; then capture, on every lane, those that gain."""
        half = num_sms(self._device) // 4 * 2  # of the multiprocessors, in whole clusters
        self._capture_shared(sizes_to_share(self._buckets), half)
        pair = (self._lanes[0], self._lanes[1])
        self._sharing = self._measure(lambda: measure_sharing(pair, self._buckets, self._sample_batch))
        self._shared_tokens = choose_halves(self._buckets, self._sharing)
        self._capture_shared(self._shared_tokens, half)

    def _capture_shared(self, sizes: tuple[int, ...], max_sms: int) -> None:
        def capture() -> None:
            with self.alone() as lane:
                free = torch.cuda.mem_get_info(self._device)[0]
                lane.capture_shared(sizes, max_sms)
                self._lane_bytes[self.this_place] += free - torch.cuda.mem_get_info(self._device)[0]

        self.on_every_lane(capture)

    def _measure(self, work: Callable[[], T]) -> T:
        """On a lane's thread, while no lane launches; the caller sees to it that none runs."""

        def alone() -> T:
            with self.launching, torch.cuda.device(self._device):
                return work()

        return self.executor.submit(alone).result()

    def _sample_batch(self, tokens: int) -> PackedBatch:
        """Random samples that fill a bucket of that size, of MEASURED_LENGTH where the bounds allow it."""
        length = max(MEASURED_LENGTH, -(-tokens // self._bounds.samples))
        length = min(length, self._bounds.tokens_per_sample)
        count = min(max(1, -(-tokens // length)), self._bounds.samples)
        ids = torch.randint(0, self._vocab_size, (min(tokens, count * length),))
        return pack([chunk.tolist() for chunk in ids.chunk(count)])
