"""One CUDA lane: a stream, its buffers, and a captured graph for every bucket of the model and of each head.

A graph holds the whole run: pinned host memory -> device, the compiled package, last-token states ->
`hidden`. A head's graph goes on from there to pinned results. Some buckets have a second graph limited to a
share of the multiprocessors, for when other lanes are at work: the same bits, another number of blocks. All
graphs of a lane share one memory pool, since they run one after another. Capturing and launching happen on
the lane's own thread; the package's Python, if any, runs at capture alone. The tensors that `launch` returns
are the lane's own, overwritten by its next launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.hopper.sm_limit import sm_limit
from engine.packed import MIN_SAMPLES, PackedBatch
from engine.runtime.bucket_inputs import BucketInputs
from engine.runtime.buckets import Bucket, Buckets
from engine.runtime.capture import Capture, copy_out, pinned_like
from engine.runtime.launches import LaunchMeter
from engine.runtime.native import Runner
from engine.runtime.quiet_collector import quiet_collector

Head = Callable[[Tensor], tuple[Tensor, ...]]
Replay = Callable[[], None]
CONSTANT_ROWS = 256  # tokens of a constant prefix that a graph has room for


@dataclass(frozen=True)
class _HeadGraph:
    graph: torch.cuda.CUDAGraph
    results: tuple[Tensor, ...]  # pinned


class GraphLane:
    """Captured once, then frozen: serving compiles and captures nothing, and allocates only for an unknown
    head."""

    def __init__(
        self,
        runner: Runner,
        stream: torch.cuda.Stream,
        buckets: Buckets,
        hidden_size: int,
        no_constant: Tensor | None = None,
        constant_rows: int = CONSTANT_ROWS,
    ) -> None:
        """On the lane's thread, whose current stream becomes `stream`. `no_constant` as LanePool takes it:
        graphs read the constant prefix, of at most `constant_rows` tokens, from a buffer of the lane."""
        torch.cuda.set_stream(stream)  # once here, so that no launch has to
        torch.set_grad_enabled(False)
        largest = Bucket(buckets.tokens[-1], buckets.samples[-1])
        self._runner, self.stream, self._buckets = runner, stream, buckets
        self.memory = torch.cuda.graph_pool_handle()  # of everything that is captured for this lane
        device = stream.device
        self._host = torch.zeros(BucketInputs.num_bytes(largest), dtype=torch.uint8, pin_memory=True)
        self._device = torch.zeros_like(self._host, device=device)
        self._hidden = torch.zeros((largest.samples, hidden_size), dtype=torch.bfloat16, device=device)
        self._constant: Tensor | None = None
        if no_constant is not None:
            layers, both, _, *heads = no_constant.shape
            shape = (layers, both, max(constant_rows, MIN_SAMPLES), *heads)
            self._constant = torch.zeros(shape, dtype=no_constant.dtype, device=device)
        self._held: Tensor | None = None  # what `_constant` is a copy of
        self._inputs: dict[Bucket, BucketInputs] = {}
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._shared: dict[Bucket, torch.cuda.CUDAGraph] = {}  # beside other lanes' work
        self._heads: dict[tuple[Head, int], _HeadGraph] = {}
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.busy = False  # has work; written by the lane's thread alone
        self.eager_heads = 0  # launches whose head had no graph
        self.meter = LaunchMeter()

    def capture(self) -> None:
        """Every bucket's graph, after one run of every token size and of every sample size."""
        buckets = self._buckets.all()
        by_samples = {bucket.samples: bucket for bucket in reversed(buckets)}  # each with the most tokens
        by_tokens = {bucket.tokens: bucket for bucket in buckets}  # each with the fewest samples
        with torch.cuda.stream(self.stream), torch.no_grad(), quiet_collector():
            for bucket in dict.fromkeys((*by_samples.values(), *by_tokens.values())):
                self._run_model(bucket)  # libraries choose and load kernels by size: not allowed in a capture
            self.stream.synchronize()
            for bucket in buckets:
                self._graphs[bucket] = self._capture_model(bucket)
                self._inputs[bucket] = BucketInputs.over(self._host, bucket)

    def capture_shared(self, sizes: Iterable[int], max_sms: int) -> None:
        """A second graph, within `max_sms` multiprocessors, for each bucket of these token sizes; earlier
        ones of other sizes go."""
        wanted = [bucket for bucket in self._graphs if bucket.tokens in set(sizes)]
        self._shared = {bucket: graph for bucket, graph in self._shared.items() if bucket in wanted}
        with torch.cuda.stream(self.stream), torch.no_grad(), quiet_collector(), sm_limit(max_sms):
            for bucket in wanted:
                if bucket not in self._shared:
                    self._shared[bucket] = self._capture_model(bucket)

    def capture_head(self, head: Head) -> None:
        """`head` of every sample size; it may only enqueue work on the device."""
        with torch.cuda.stream(self.stream), torch.no_grad(), quiet_collector():
            for samples in reversed(self._buckets.samples):
                results = tuple(pinned_like(x) for x in head(self._hidden[:samples]))
                self.stream.synchronize()
                with Capture(self.memory, self.stream) as graph:
                    copy_out(head(self._hidden[:samples]), results)
                self._heads[head, samples] = _HeadGraph(graph, results)

    def launch(self, packed: PackedBatch, head: Head, shared: bool = False) -> tuple[Tensor, ...]:
        """Everything of one batch is enqueued; the returned tensors hold its results after `wait`. `shared`:
        leave multiprocessors to other lanes where the bucket has a graph for it."""
        began = time.thread_time()
        bucket = self._find(packed)
        graph = self._choose(bucket, shared)
        known = self._heads.get((head, bucket.samples))
        self._inputs[bucket].fill(packed)
        self._hold_constant(packed.constant)
        filled = time.thread_time()
        graph.replay()
        if known is not None:
            known.graph.replay()
        replayed = time.thread_time()
        results = self._run_eagerly(packed, head) if known is None else known.results
        self._done.record(self.stream)
        self.meter.note(time.thread_time() - replayed + filled - began)
        return tuple(x[: packed.num_samples] for x in results)

    def wait(self) -> None:
        """Until the last launch's results are there; does not hold the interpreter lock."""
        self._done.synchronize()

    def hold(self, packed: PackedBatch, shared: bool = False) -> Replay:
        """Fill the buffers; the result replays that batch's graph, the shared one where it has one and that
        is asked for, on the caller's stream. For measuring."""
        bucket = self._find(packed)
        self._inputs[bucket].fill(packed)
        with torch.cuda.stream(self.stream), torch.no_grad():
            self._hold_constant(packed.constant)
        self.stream.synchronize()
        replay: Replay = self._choose(bucket, shared).replay
        return replay

    @property
    def num_graphs(self) -> int:
        return len(self._graphs) + len(self._shared) + len(self._heads)

    def _find(self, packed: PackedBatch) -> Bucket:
        """The batch's bucket; tiny token sizes have no graph for many samples, the next larger ones do."""
        wanted = self._buckets.choose(packed.num_tokens, packed.num_segments)
        if wanted in self._graphs:
            return wanted
        return min(x for x in self._graphs if x.tokens >= wanted.tokens and x.samples >= wanted.samples)

    def _choose(self, bucket: Bucket, shared: bool) -> torch.cuda.CUDAGraph:
        limited = self._shared.get(bucket) if shared else None
        return self._graphs[bucket] if limited is None else limited

    def _hold_constant(self, constant: Tensor | None) -> None:
        """Copied on the device where another pipeline's was there."""
        if constant is not None and constant is not self._held:
            assert self._constant is not None
            self._constant[:, :, : constant.shape[2]].copy_(constant)
            self._held = constant

    def _run_eagerly(self, packed: PackedBatch, head: Head) -> tuple[Tensor, ...]:
        self.eager_heads += 1
        out = head(self._hidden[: packed.num_samples])
        results = tuple(pinned_like(x) for x in out)
        copy_out(out, results)
        return results

    def _capture_model(self, bucket: Bucket) -> torch.cuda.CUDAGraph:
        with Capture(self.memory, self.stream) as graph:
            self._run_model(bucket)
        return graph

    def _run_model(self, bucket: Bucket) -> None:
        size = BucketInputs.num_bytes(bucket)
        self._device[:size].copy_(self._host[:size], non_blocking=True)
        inputs = BucketInputs.over(self._device, bucket)
        given = [inputs.input_ids, inputs.positions, inputs.cu_seqlens]
        if self._constant is not None:
            given += [inputs.prefixes, self._constant]
        out = self._runner.run(given)[0]
        self._hidden[: bucket.samples].copy_(out)
