"""One lane's captured searches: a graph for every bucket of every plan, over one state and one memory pool.

A graph holds the whole search: the prompts' package, the first expansion, every step's package and expansion,
and what gathers the results. It is kernels alone, one after the other, which a driver launches in one go: the
copy from pinned memory before it and the one to pinned memory after it are enqueued beside it. Capturing and
launching happen on the lane's own thread; Python, the packages' operations included, runs at capture alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.beam.frontier import Frontier, Rules
from engine.beam.kept_cache import KeptCache, PromptInputs
from engine.beam.legal import LegalTensors
from engine.beam.search import Head, SearchPlan, search
from engine.packed import PackedBatch
from engine.runtime.beam_buckets import TOKEN_STEP, BeamBucket
from engine.runtime.beam_transfer import BeamInputs, HostInputs, HostResults, gather_results
from engine.runtime.capture import Capture, pinned_like
from engine.runtime.graph_lane import GraphLane


@dataclass(frozen=True)
class SearchKey:
    """Which graph: `place` names where legal sequences are read, None where there are none."""

    plan: SearchPlan
    place: tuple[int, int] | None
    bucket: BeamBucket


@dataclass(frozen=True)
class CapturedSearch:
    """A graph and the memory around it: pinned on the host, and what the graph reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: HostInputs
    results: HostResults
    to_device: tuple[Tensor, Tensor]  # target and source, as in `copy_`
    to_host: tuple[Tensor, Tensor]

    def enqueue(self) -> None:
        """Everything of the batch that was filled in, on the current stream."""
        target, source = self.to_device
        target.copy_(source, non_blocking=True)
        self.graph.replay()
        target, source = self.to_host
        target.copy_(source, non_blocking=True)


class BeamGraphLane:
    """`lane` gives the stream and the memory; what is searched with lies in `cache`."""

    def __init__(self, lane: GraphLane, cache: KeptCache, device: torch.device) -> None:
        self._lane, self._cache, self._device = lane, cache, device
        self._host = torch.empty(0, dtype=torch.uint8, pin_memory=True)
        self._inputs = torch.empty(0, dtype=torch.uint8, device=device)
        self._ends: dict[
            tuple[int, ...], Tensor
        ] = {}  # end tokens on the device, kept for graphs that read them
        self._graphs: dict[SearchKey, CapturedSearch] = {}
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def reserve(self, buckets: Sequence[BeamBucket]) -> None:
        """Input memory for the largest of them; graphs that were captured keep what they read."""
        wanted = max(BeamInputs.num_bytes(bucket) for bucket in buckets)
        if wanted > len(self._host):
            self._host = torch.zeros(wanted, dtype=torch.uint8, pin_memory=True)
            self._inputs = torch.zeros_like(self._host, device=self._device)

    def capture(self, key: SearchKey, head: Head, legal: LegalTensors | None) -> None:
        """One graph, after one run of the same: libraries choose and load kernels by size, which a capture
        does not allow. Replaces the key's graph where there is one."""
        bucket, stream = key.bucket, self._lane.stream
        size = BeamInputs.num_bytes(bucket)
        to_device = self._inputs[:size], self._host[:size]
        inputs = BeamInputs.over(self._host, bucket)
        for x in (inputs.input_ids, inputs.positions):
            x.zero_()
        # Tokens a prompt: no more than a prompt may have, so without what pads the bucket.
        each = max(1, (bucket.tokens - TOKEN_STEP) // bucket.segments - 1)
        inputs.cu_seqlens.copy_(torch.arange(bucket.segments + 1) * each)
        inputs.widths.fill_(bucket.width)
        with torch.cuda.stream(stream), torch.no_grad():
            to_device[0].copy_(to_device[1], non_blocking=True)
            found = self._search(key, head, legal)
            columns: dict[str, Any] = {n: None if x is None else x.to("meta") for n, x in vars(found).items()}
            host = pinned_like(gather_results(found))
            del found  # its memory is the graph's, too
            stream.synchronize()
            with Capture(self._lane.memory, stream) as graph:
                gathered = gather_results(self._search(key, head, legal))
        results = HostResults(host, Frontier(**columns))
        self._graphs[key] = CapturedSearch(graph, HostInputs(inputs), results, to_device, (host, gathered))

    def drop(self, place: int) -> None:
        """The graphs over one pipeline's legal sequences."""
        self._graphs = {
            key: graph for key, graph in self._graphs.items() if key.place is None or key.place[0] != place
        }

    def find(self, key: SearchKey) -> CapturedSearch | None:
        return self._graphs.get(key)

    def launch(self, captured: CapturedSearch, packed: PackedBatch, widths: Sequence[int]) -> None:
        """Everything of one batch is enqueued; its results are there after `wait`. On the lane's thread,
        whose current stream is the lane's."""
        began = time.thread_time()
        captured.inputs.fill(packed, widths)
        self._lane.meter.note(time.thread_time() - began)
        captured.enqueue()
        self._done.record(self._lane.stream)

    def wait(self) -> None:
        """Until the last launch's results are there; does not hold the interpreter lock."""
        self._done.synchronize()

    def _search(self, key: SearchKey, head: Head, legal: LegalTensors | None) -> Frontier:
        bucket = key.bucket
        given = BeamInputs.over(self._inputs, bucket)
        prompts = PromptInputs(given.input_ids, given.positions, given.cu_seqlens)
        self._cache.hold(prompts, bucket.prompts, bucket.width)
        rules = Rules(bucket.width, given.widths, self._end_tokens(key.plan), legal)
        return search(self._cache, head, rules, key.plan.steps)

    def _end_tokens(self, plan: SearchPlan) -> Tensor | None:
        if plan.end_tokens is None:
            return None
        if plan.end_tokens not in self._ends:
            self._ends[plan.end_tokens] = torch.tensor(plan.end_tokens, device=self._device)
        return self._ends[plan.end_tokens]
