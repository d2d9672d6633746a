"""Lanes: the threads that run an artifact's compiled package, one runner each, one copy of the weights.

A runner belongs to its lane's thread, so `forward` and `run` may only be called inside work submitted to
`executor`. Neither holds the interpreter lock while it computes. On CUDA each lane has its own stream and
waits for it before it returns: what comes back is on the CPU and owned by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Lock, local
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.packed import MIN_SAMPLES, NO_PREFIX, BatchBounds, PackedBatch, pack
from engine.runtime.cost import CostModel
from engine.runtime.launches import NO_LAUNCHES, LaunchReport
from engine.runtime.load_report import LoadReport
from engine.runtime.native import Runner, open_runner

Head = Callable[[Tensor], tuple[Tensor, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class _Lane:
    runner: Runner
    stream: torch.cuda.Stream | None


class LanePool:
    """`num_lanes` lanes behind one executor; `weights` are shared and hold every constant of the package."""

    patience_s = 120.0  # a runner opens in seconds; a lane that takes longer than this is stuck

    def __init__(
        self,
        package: Path,
        weights: Mapping[str, Tensor],
        bounds: BatchBounds,
        *,
        vocab_size: int,
        device: torch.device,
        lanes: int,
        threads: int,
        no_constant: Tensor | None = None,
    ) -> None:
        """Opens every runner and runs it once; ValueError for counts below one.

        `no_constant` (engine.models.decoder) is what a package that takes prefixes gets for a batch without.
        """
        for key, value in (("lanes", lanes), ("threads", threads)):
            if value < 1:
                raise ValueError(f"{key} = {value!r}: must be at least 1")
        self.num_lanes = lanes
        self.executor = ThreadPoolExecutor(
            max_workers=lanes, thread_name_prefix=f"lane-{package.parent.name}"
        )
        # For what is left of a batch when its lane may take the next one; threads start with the first of it.
        # Each waits, and a lane may have two batches: no results may wait for those of another lane.
        self.finisher = ThreadPoolExecutor(
            max_workers=2 * lanes, thread_name_prefix=f"finish-{package.parent.name}"
        )
        self._package, self._weights, self._bounds = package, dict(weights), bounds
        self._vocab_size, self._device, self._threads = vocab_size, device, threads
        self._no_constant = no_constant
        self._no_prefixes = torch.tensor([NO_PREFIX] * MIN_SAMPLES, dtype=torch.int32)
        self._mine = local()
        self._gathering = Lock()
        self._seconds = 0.0  # of loading
        self._load(lambda: self.on_every_lane(self._start))

    @property
    def takes_prefixes(self) -> bool:
        return self._no_constant is not None

    @property
    def cost(self) -> CostModel | None:
        """What batches take, where that was measured at load."""
        return None

    @property
    def fallbacks(self) -> int:
        """Launches since load that were not wholly captured; a pool without graphs has none to miss."""
        return 0

    @property
    def launch_report(self) -> LaunchReport:
        """How long launches since load held the interpreter; only graphs are launched."""
        return NO_LAUNCHES

    @property
    def load_report(self) -> LoadReport:
        return LoadReport(self._seconds, 0, self._weights_bytes, ())

    @property
    def _weights_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self._weights.values())

    @property
    def most_segments(self) -> int:
        return self._bounds.segments

    @property
    def most_constant(self) -> int:
        """Tokens of a constant prefix."""
        return self._bounds.tokens_per_sample - 1

    def forward(self, packed: PackedBatch) -> Tensor:
        """Normed hidden states of each real sample's last token: float32[num_samples, H], CPU."""
        return self.run(packed, lambda hidden: (hidden,))[0]

    def run(self, packed: PackedBatch, head: Head) -> tuple[Tensor, ...]:
        """`head` applied to those hidden states on the lane's device and stream, in the artifact's dtype.

        Its tensors come back on the CPU, floating ones as float32. On CUDA this spares copying [S, H] and
        multiplies a large head where it is fast. ValueError for a batch over the bounds or an unknown token.
        """
        lane = self._lane()
        self.check(packed)
        return self.compute(lambda: head(self._hidden(lane.runner, packed)))

    def compute(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What `work` gives on this lane's stream, copied back as `run` does; on a lane's thread."""
        lane = self._lane()
        with torch.inference_mode():
            if lane.stream is None:
                return tuple(map(_widen, work()))
            with torch.cuda.stream(lane.stream):
                results = [_widen(x) for x in work()]
                copies = tuple(torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in results)
                for copy, result in zip(copies, results, strict=True):
                    copy.copy_(result, non_blocking=True)
            lane.stream.synchronize()
            return copies

    def open_package(self, package: Path) -> Runner:
        """Another package over the same weights, for the calling lane's thread."""
        on_cuda = self._device.type == "cuda"
        with torch.cuda.device(self._device) if on_cuda else nullcontext():
            runner = open_runner(package, (self._device.index or 0) if on_cuda else -1)
            runner.use_constants({name: self._weights[name] for name in runner.constant_names()})
            return runner

    def on_every_lane(self, task: Callable[[], None]) -> None:
        """Run `task` once on each lane's thread and wait; the first error is raised."""
        barrier = Barrier(self.num_lanes)  # none ends before all have begun, so that no thread gets two

        def once() -> None:
            try:
                task()
                barrier.wait(self.patience_s)
            except BaseException:
                barrier.abort()  # the other lanes need not wait for this one
                raise

        with self._gathering:  # two callers at once would each hold a lane and wait for the other's
            running = [self.executor.submit(once) for _ in range(self.num_lanes)]
            errors = [error for lane in running if (error := lane.exception()) is not None]
        if errors:
            # The lanes that waited for the failing one say only that.
            raise min(errors, key=lambda error: isinstance(error, BrokenBarrierError))

    def prepare(self, head: Head) -> None:
        """Tell a pool which heads will come, before work does: one that captures graphs makes them now."""

    def share(self) -> None:
        """Tell a pool that its package can leave a part of the device to other lanes, before work comes: one
        that captures graphs measures where that helps."""

    def close(self) -> None:
        """Finish what was submitted, then free the runners; idempotent."""
        self.executor.shutdown(wait=True)
        self.finisher.shutdown(wait=True)

    def _load(self, work: Callable[[], T]) -> T:
        """A part of loading: its time counts, its failure ends the lanes."""
        started = time.monotonic()
        try:
            result = work()
        except BaseException:
            self.close()
            raise
        self._seconds += time.monotonic() - started
        return result

    def _start(self) -> None:
        # Counts for this thread alone; torch also takes it as the default of threads that start later.
        torch.set_num_threads(self._threads)
        self._mine.lane = self._open_lane()
        self.forward(pack([[0]]))  # the first run loads and allocates: not the first request's business

    def _open_lane(self) -> _Lane:
        on_cuda = self._device.type == "cuda"
        runner = self.open_package(self._package)
        return _Lane(runner, torch.cuda.Stream(self._device) if on_cuda else None)  # type: ignore[no-untyped-call]

    def _lane(self) -> _Lane:
        lane: _Lane | None = getattr(self._mine, "lane", None)
        if lane is None:
            raise RuntimeError("not a lane's thread: submit the work to LanePool.executor")
        return lane

    def check(self, packed: PackedBatch) -> None:
        """ValueError for a batch over the bounds or an unknown token."""
        given = (packed.num_samples, packed.num_tokens, packed.max_seqlen)
        for key, value in zip(("samples", "tokens", "tokens_per_sample"), given, strict=True):
            if value > getattr(self._bounds, key):
                raise ValueError(f"{key} = {value}: over the artifact's {getattr(self._bounds, key)}")
        if packed.num_segments > self.most_segments:
            raise ValueError(f"segments = {packed.num_segments}: a batch may have {self.most_segments}")
        if packed.prefixes is not None and not self.takes_prefixes:
            raise ValueError("prefixes: this artifact's package takes none")
        ids = packed.token_ids  # of torch, every operation would let others have the interpreter
        if np.maximum.reduce(ids.view(np.uint64)) >= self._vocab_size:  # one below zero is a large one there
            low, high = int(ids.min()), int(ids.max())
            raise ValueError(
                f"token id {low if low < 0 else high}: not in the vocabulary of {self._vocab_size}"
            )

    def _hidden(self, runner: Runner, packed: PackedBatch) -> Tensor:
        inputs = [packed.input_ids, packed.positions, packed.cu_seqlens]
        if self.takes_prefixes:
            inputs.append(self._no_prefixes if packed.prefixes is None else packed.prefixes)
        if self._device.type == "cuda":
            inputs = [x.pin_memory().to(self._device, non_blocking=True) for x in inputs]
        if self._no_constant is not None:
            inputs.append(self._no_constant if packed.constant is None else packed.constant)
        return runner.run(inputs)[0][: packed.num_samples]


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() else x
