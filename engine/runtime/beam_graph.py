"""One lane's captured searches: a graph for every bucket of every plan, over one state and one memory pool.

A graph holds the whole search: the prompts' package, the first expansion, every step's package and expansion,
and what gathers the results. It is kernels alone, one after the other, which a driver launches in one go: the
copy from pinned memory before it and the one to pinned memory after it are enqueued beside it. Capturing and
launching happen on the lane's own thread; Python, the packages' operations included, runs at capture alone.

A lane may take its next batch HEAD_START_S before the last one ends on the device: as long as it takes to
fill it in and enqueue it; and by what forming it takes sooner. No sooner, as requests that come meanwhile
would miss it; no later, as the device would wait. What a graph takes is learned as it serves; until then, the
least of those for as many requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
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
from engine.runtime.capture import Capture
from engine.runtime.graph_lane import GraphLane
from engine.runtime.pending_search import CapturedSearch, Ends, HostSide, Pace, PendingSearch

HEAD_START_S = 0.6e-3  # filling in and enqueuing take half of it, waking up the rest


@dataclass(frozen=True)
class SearchKey:
    """Which graph: `place` names where legal sequences are read, None where there are none."""

    plan: SearchPlan
    place: tuple[int, int] | None
    bucket: BeamBucket


@dataclass(frozen=True)
class _Steps:
    """Of graphs that differ in prompts' tokens alone: shapes of their results, and what they take."""

    results: Frontier
    pace: Pace = field(default_factory=Pace)


class BeamGraphLane:
    """`lane` gives the stream and the memory; what is searched with lies in `cache`."""

    def __init__(self, lane: GraphLane, cache: KeptCache, device: torch.device) -> None:
        self._lane, self._cache, self._device = lane, cache, device
        self._sides = HostSide(), HostSide()
        self.eager_searches = 0  # launches that had no graph
        self._place = 0  # of the side that the next batch takes
        self._before: PendingSearch | None = None  # the last launch but one
        self._last: PendingSearch | None = None
        self._inputs = torch.empty(0, dtype=torch.uint8, device=device)
        self._ends: dict[
            tuple[int, ...], Tensor
        ] = {}  # end tokens on the device, kept for graphs that read them
        self._graphs: dict[SearchKey, CapturedSearch] = {}
        self._steps: dict[SearchKey, _Steps] = {}

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def reserve(self, buckets: Sequence[BeamBucket]) -> None:
        """Input memory for the largest of them; graphs that were captured keep what they read."""
        wanted = max(BeamInputs.num_bytes(bucket) for bucket in buckets)
        if wanted > len(self._inputs):
            self._inputs = torch.zeros(wanted, dtype=torch.uint8, device=self._device)
            for side in self._sides:
                side.inputs = torch.zeros(wanted, dtype=torch.uint8, pin_memory=True)

    def capture(self, key: SearchKey, head: Head, legal: LegalTensors | None, *, afresh: bool) -> None:
        """One graph, after one run of what no graph before it had: libraries choose and load kernels by size,
        which a capture does not allow. Replaces the key's graph where there is one. `afresh`: of other legal
        sequences than before."""
        bucket, stream, like = key.bucket, self._lane.stream, replace(key, bucket=_of_steps(key.bucket))
        stream.synchronize()  # a batch may not have been copied yet from where this writes
        size = BeamInputs.num_bytes(bucket)
        to_device = self._inputs[:size], self._sides[0].inputs[:size]
        _fill_evenly(BeamInputs.over(to_device[1], bucket), bucket)
        with torch.cuda.stream(stream), torch.no_grad():
            to_device[0].copy_(to_device[1], non_blocking=True)
            if afresh or like not in self._steps:
                self._steps[like] = _Steps(_shapes_of(self._search(key, head, legal)))
            else:  # the steps have run; how many tokens prompts have is nothing to them
                self._hold(bucket)
                self._cache.prompt()
            stream.synchronize()
            with Capture(self._lane.memory, stream) as graph:
                gathered = gather_results(self._search(key, head, legal))
            graph.replay()  # what a driver does at a graph's first launch is no request's business
        steps = self._steps[like]
        ends = [self._ends_at(side, bucket, gathered.nbytes, steps.results) for side in self._sides]
        self._graphs[key] = CapturedSearch(graph, to_device[0], gathered, ends, steps.pace)

    def drop(self, place: int) -> None:
        """The graphs over one pipeline's legal sequences; waits for what was launched."""
        self._lane.stream.synchronize()
        self._before = self._last = None
        for kept in (self._graphs, self._steps):
            for key in [key for key in kept if key.place is not None and key.place[0] == place]:
                del kept[key]

    def find(self, key: SearchKey) -> CapturedSearch | None:
        return self._graphs.get(key)

    def launch(
        self,
        captured: CapturedSearch,
        packed: PackedBatch,
        widths: Sequence[int],
        width: int,
        launching: Lock,
    ) -> PendingSearch:
        """Everything of one batch is enqueued, under the lock `launching`; results have `width` beams. On the
        lane's thread, whose current stream is the lane's."""
        ends, place = captured.ends[self._place], self._place
        ends.side.take()
        try:
            began = time.thread_time()
            ends.inputs.fill(packed, widths)
            filled = time.thread_time()
            with launching:
                ends.side.begun.record(self._lane.stream)
                captured.enqueue(place)
                ends.side.done.record(self._lane.stream)
            enqueued = time.thread_time()
            launched = PendingSearch(captured, ends, packed.num_samples, width)  # while the device works
            self._lane.meter.note(time.thread_time() - enqueued + filled - began)
        except BaseException:
            with suppress(RuntimeError):  # of the device
                self._lane.stream.synchronize()  # what was enqueued may not have read its inputs yet
            ends.side.give_back()
            raise
        self._place = 1 - place
        self._before, self._last = self._last, launched
        return launched

    def wait_turn(self, lead_s: float = 0.0) -> None:
        """Until the last launch is about to end, on the lane's thread; does not hold the interpreter lock.
        `lead_s`: until the next batch is there."""
        if self._last is None:
            return
        if self._before is not None:
            self._before.wait()  # what was enqueued behind it begins now
        expected_s = self._last.captured.expected_s
        if expected_s is None:
            self._last.wait()
        elif expected_s > HEAD_START_S + lead_s:
            time.sleep(expected_s - HEAD_START_S - lead_s)

    def _ends_at(self, side: HostSide, bucket: BeamBucket, num_bytes: int, like: Frontier) -> Ends:
        """Room for results is made where there is too little; earlier graphs keep theirs."""
        if num_bytes > len(side.results):
            side.results = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        source, target = side.inputs[: BeamInputs.num_bytes(bucket)], side.results[:num_bytes]
        inputs = HostInputs(BeamInputs.over(side.inputs, bucket))
        return Ends(side, inputs, source, target, HostResults(target, like))

    def _search(self, key: SearchKey, head: Head, legal: LegalTensors | None) -> Frontier:
        given = self._hold(key.bucket)
        rules = Rules(key.bucket.width, given.widths, self._end_tokens(key.plan), legal)
        return search(self._cache, head, rules, key.plan.steps)

    def _hold(self, bucket: BeamBucket) -> BeamInputs:
        given = BeamInputs.over(self._inputs, bucket)
        prompts = PromptInputs(given.input_ids, given.positions, given.cu_seqlens)
        self._cache.hold(prompts, bucket.prompts, bucket.width)
        return given

    def _end_tokens(self, plan: SearchPlan) -> Tensor | None:
        if plan.end_tokens is None:
            return None
        if plan.end_tokens not in self._ends:
            self._ends[plan.end_tokens] = torch.tensor(plan.end_tokens, device=self._device)
        return self._ends[plan.end_tokens]


def _fill_evenly(inputs: BeamInputs, bucket: BeamBucket) -> None:
    """Any prompts that the bucket holds."""
    for x in (inputs.input_ids, inputs.positions):
        x.zero_()
    # Tokens a prompt: no more than a prompt may have, so without what pads the bucket.
    each = max(1, (bucket.tokens - TOKEN_STEP) // bucket.segments - 1)
    inputs.cu_seqlens.copy_(torch.arange(bucket.segments + 1) * each)
    inputs.widths.fill_(bucket.width)


def _of_steps(bucket: BeamBucket) -> BeamBucket:
    """One for all that differ in tokens alone."""
    return replace(bucket, tokens=0)


def _shapes_of(found: Frontier) -> Frontier:
    columns: dict[str, Any] = {name: None if x is None else x.to("meta") for name, x in vars(found).items()}
    return Frontier(**columns)
