"""One CUDA lane: a stream, its buffers, and a captured graph for every bucket of the model and of each head.

A graph holds the whole run: pinned host memory -> device, the compiled package, last-token states ->
`hidden`. A head's graph goes on from there to pinned results. All graphs of a lane share one memory pool,
since they run one after another. Capturing and launching happen on the lane's own thread; the package's
Python, if any, runs at capture alone. The tensors that `launch` returns are the lane's own, overwritten by
its next launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.packed import MIN_SAMPLES, NO_PREFIX, PackedBatch
from engine.runtime.buckets import Bucket, Buckets
from engine.runtime.native import Runner
from engine.runtime.quiet_collector import quiet_collector

Head = Callable[[Tensor], tuple[Tensor, ...]]
CONSTANT_ROWS = 256  # tokens of a constant prefix that a graph has room for
_ALIGN = 64  # bytes; kernels read 16 at a time


@dataclass(frozen=True)
class BucketInputs:
    """Views of one memory, host's or device's, as a bucket lays it out."""

    input_ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    prefixes: Tensor

    @classmethod
    def over(cls, memory: Tensor, bucket: Bucket) -> BucketInputs:
        width, borders = _wide(8 * bucket.tokens), 4 * (bucket.samples + 1)
        ids, positions = (memory[i * width : i * width + 8 * bucket.tokens] for i in (0, 1))
        ends = memory[2 * width : 2 * width + borders]
        start = 2 * width + _wide(borders)
        before = memory[start : start + 8 * bucket.samples].view(torch.int32).view(bucket.samples, 2)
        return cls(ids.view(torch.int64), positions.view(torch.int64), ends.view(torch.int32), before)

    @staticmethod
    def num_bytes(bucket: Bucket) -> int:
        return 2 * _wide(8 * bucket.tokens) + _wide(4 * (bucket.samples + 1)) + 8 * bucket.samples

    def fill(self, packed: PackedBatch) -> None:
        """The real segments; the rest of the bucket is token 0 of no segment."""
        tokens, segments = packed.num_tokens, packed.num_segments
        for ours, theirs in ((self.input_ids, packed.input_ids), (self.positions, packed.positions)):
            ours[:tokens].copy_(theirs[:tokens])
            ours[tokens:].zero_()
        self.cu_seqlens[: segments + 1].copy_(packed.cu_seqlens[: segments + 1])
        self.cu_seqlens[segments + 1 :].fill_(tokens)
        self.prefixes[:, 0].fill_(NO_PREFIX[0])
        self.prefixes[:, 1].fill_(NO_PREFIX[1])
        if packed.prefixes is not None:
            self.prefixes[:segments].copy_(packed.prefixes[:segments])


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
        """`no_constant` as LanePool takes it: graphs read the constant prefix, of at most `constant_rows`
        tokens, from a buffer of the lane."""
        largest = Bucket(buckets.tokens[-1], buckets.samples[-1])
        self._runner, self.stream, self._buckets = runner, stream, buckets
        self._pool = torch.cuda.graph_pool_handle()
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
        self._graphs: dict[Bucket, tuple[torch.cuda.CUDAGraph, BucketInputs]] = {}
        self._heads: dict[tuple[Head, int], _HeadGraph] = {}
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.eager_heads = 0  # launches whose head had no graph

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
                with _Capture(self._pool, self.stream) as graph:
                    self._run_model(bucket)
                self._graphs[bucket] = (graph, BucketInputs.over(self._host, bucket))

    def capture_head(self, head: Head) -> None:
        """`head` of every sample size; it may only enqueue work on the device."""
        with torch.cuda.stream(self.stream), torch.no_grad(), quiet_collector():
            for samples in reversed(self._buckets.samples):
                results = tuple(_pinned_like(x) for x in head(self._hidden[:samples]))
                self.stream.synchronize()
                with _Capture(self._pool, self.stream) as graph:
                    _copy_out(head(self._hidden[:samples]), results)
                self._heads[head, samples] = _HeadGraph(graph, results)

    def launch(self, packed: PackedBatch, head: Head) -> tuple[Tensor, ...]:
        """Everything of one batch is enqueued; the returned tensors hold its results after `wait`."""
        bucket = self._find(packed)
        graph, inputs = self._graphs[bucket]
        inputs.fill(packed)
        with torch.cuda.stream(self.stream), torch.no_grad():
            self._hold_constant(packed.constant)
            graph.replay()
            known = self._heads.get((head, bucket.samples))
            if known is not None:
                known.graph.replay()
                results = known.results
            else:
                self.eager_heads += 1
                out = head(self._hidden[: packed.num_samples])
                results = tuple(_pinned_like(x) for x in out)
                _copy_out(out, results)
            self._done.record(self.stream)
        return tuple(x[: packed.num_samples] for x in results)

    def wait(self) -> None:
        """Until the last launch's results are there; does not hold the interpreter lock."""
        self._done.synchronize()

    def hold(self, packed: PackedBatch) -> Callable[[], None]:
        """Fill the buffers; the result replays that batch's graph on the caller's stream. For measuring."""
        graph, inputs = self._graphs[self._find(packed)]
        inputs.fill(packed)
        with torch.cuda.stream(self.stream), torch.no_grad():
            self._hold_constant(packed.constant)
        self.stream.synchronize()
        replay: Callable[[], None] = graph.replay
        return replay

    def measure_ms(self, packed: PackedBatch, replays: int) -> float:
        """Mean of back-to-back runs of one batch, without a head; waits for them."""
        replay = self.hold(packed)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            replay()
            start.record(self.stream)
            for _ in range(replays):
                replay()
            end.record(self.stream)
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed / replays

    @property
    def num_graphs(self) -> int:
        return len(self._graphs) + len(self._heads)

    def _find(self, packed: PackedBatch) -> Bucket:
        """The batch's bucket; tiny token sizes have no graph for many samples, the next larger ones do."""
        wanted = self._buckets.choose(packed.num_tokens, packed.num_segments)
        if wanted in self._graphs:
            return wanted
        return min(x for x in self._graphs if x.tokens >= wanted.tokens and x.samples >= wanted.samples)

    def _hold_constant(self, constant: Tensor | None) -> None:
        """Copied on the device where another pipeline's was there."""
        if constant is not None and constant is not self._held:
            assert self._constant is not None
            self._constant[:, :, : constant.shape[2]].copy_(constant)
            self._held = constant

    def _run_model(self, bucket: Bucket) -> None:
        size = BucketInputs.num_bytes(bucket)
        self._device[:size].copy_(self._host[:size], non_blocking=True)
        inputs = BucketInputs.over(self._device, bucket)
        given = [inputs.input_ids, inputs.positions, inputs.cu_seqlens]
        if self._constant is not None:
            given += [inputs.prefixes, self._constant]
        out = self._runner.run(given)[0]
        self._hidden[: bucket.samples].copy_(out)


class _Capture:
    """torch.cuda.graph without collecting garbage and emptying caches, which cost more than a capture."""

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def __enter__(self) -> torch.cuda.CUDAGraph:
        self._stream.synchronize()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        return self._graph

    def __exit__(self, *_: object) -> None:
        self._graph.capture_end()


def _pinned_like(x: Tensor) -> Tensor:
    dtype = torch.float32 if x.is_floating_point() else x.dtype
    return torch.empty(x.shape, dtype=dtype, pin_memory=True)


def _copy_out(values: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    for value, result in zip(values, results, strict=True):
        result.copy_(value.to(result.dtype), non_blocking=True)


def _wide(num_bytes: int) -> int:
    """Up to the alignment."""
    return -(-num_bytes // _ALIGN) * _ALIGN
