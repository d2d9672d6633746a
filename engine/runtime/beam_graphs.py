"""BeamLanes on CUDA: every search that a pipeline can ask for is captured when the pipeline opens.

Launches are made one at a time under the pool's lock, as its other graphs are. A search that no graph holds
is launched operation by operation, and counted. Items are searched in places of a fixed capacity
(legal_slots).

A search has two parts (`begin`): when its graph is about to end, the lane's thread takes the next batch,
while another one waits for the results and spreads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from engine.beam.bounds import BeamBounds
from engine.beam.cache import BeamCache
from engine.beam.frontier import Frontier
from engine.beam.head_weight import HeadWeight
from engine.beam.kept_cache import KeptCache
from engine.beam.legal import LegalTensors
from engine.beam.search import Head, SearchPlan
from engine.packed import BatchBounds, PackedBatch
from engine.runtime.beam_buckets import BeamBucket, BeamBuckets, SearchSizes, make_beam_buckets
from engine.runtime.beam_graph import BeamGraphLane, SearchKey
from engine.runtime.beam_lanes import LEAST_ROWS, BeamLanes, Passes
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.legal_slots import LegalSlots, PlacedLegal
from engine.runtime.load_report import LoadReport
from engine.runtime.quiet_collector import quiet_collector


@dataclass(frozen=True)
class _Prepared:
    """What graphs were made for, and the head whose tensors they read."""

    plan: SearchPlan
    buckets: BeamBuckets
    head: Head


class GraphBeamLanes(BeamLanes):
    """As BeamLanes; `prepare` before serving, or each search counts as a fallback."""

    pool: GraphLanePool

    def __init__(
        self,
        pool: GraphLanePool,
        folder: Path,
        bounds: BeamBounds,
        head: HeadWeight,
        architecture: Mapping[str, Any],
        kept: BatchBounds | None,
    ) -> None:
        self._lanes: list[BeamGraphLane] = []
        self._lane_bytes = [0] * pool.num_lanes
        self._prepared: dict[LegalSlots | None, list[_Prepared]] = {}
        self._numbers: dict[LegalSlots, int] = {}
        self._counting, self._capturing = count(), Lock()
        super().__init__(pool, folder, bounds, head, architecture, kept)

    def prepare(
        self,
        plan: SearchPlan,
        sizes: SearchSizes,
        slots: LegalSlots | None = None,
        buckets: BeamBuckets | None = None,
    ) -> None:
        """Capture on every lane what batches within `sizes` need; call while no lane has work."""
        prepared = _Prepared(plan, buckets or make_beam_buckets(sizes), self._head.of(plan))
        with self._capturing:  # items may outgrow their place meanwhile, or another pipeline opens
            started = time.monotonic()
            self._prepared.setdefault(slots, []).append(prepared)
            for slot in (None,) if slots is None else (0, 1):
                self._capture(prepared, slots, slot)
            self._seconds += time.monotonic() - started

    def make_slots(self) -> LegalSlots:
        slots = LegalSlots(self.device, self._recapture)
        self._numbers[slots] = next(self._counting)
        return slots

    def release(self, slots: LegalSlots | None) -> None:
        if slots is None or slots not in self._prepared:
            return
        gone = self._prepared.pop(slots)
        place = self._numbers.pop(slots)

        def drop() -> None:
            with self._counted():
                self.this_lane.drop(place)

        with suppress(RuntimeError):  # the lanes have ended, and their graphs with them
            self.pool.on_every_lane(drop)
        gone.clear()  # not before the graphs that read it

    @property
    def fallbacks(self) -> int:
        """Searches since load that were not captured."""
        return sum(lane.eager_searches for lane in self._lanes)

    @property
    def num_graphs(self) -> int:
        return sum(lane.num_graphs for lane in self._lanes)

    @property
    def load_report(self) -> LoadReport:
        return LoadReport(self._seconds, self.num_graphs, 0, tuple(self._lane_bytes))

    def search(
        self, packed: PackedBatch, widths: Sequence[int], plan: SearchPlan, legal: LegalTensors | None = None
    ) -> Frontier:
        """See BeamLanes; StaleLegalError where `legal` is being replaced."""
        return self.begin(packed, widths, plan, legal)()

    def begin(
        self,
        packed: PackedBatch,
        widths: Sequence[int],
        plan: SearchPlan,
        legal: LegalTensors | None = None,
        lead_s: float = 0.0,
    ) -> Callable[[], Frontier]:
        """See BeamLanes; StaleLegalError where `legal` is being replaced."""
        self._check(packed, widths, plan)
        lane, width = self.this_lane, max(LEAST_ROWS, *widths)
        with ExitStack() as held:
            if isinstance(legal, PlacedLegal):
                held.enter_context(legal.slots.use(legal))
            key = self.key(packed, widths, plan, legal)
            captured = None if key is None else lane.find(key)
            if captured is None:
                lane.eager_searches += 1  # by its own thread alone
                found = super().search(packed, widths, plan, legal)
                return lambda: found
            pending = lane.launch(captured, packed, widths, width, self.pool.launching)
            using = held.pop_all()  # until the results are there
        with suppress(RuntimeError):  # of the device: `finish` raises it, too
            lane.wait_turn(lead_s)

        def finish() -> Frontier:
            with using:
                return pending.result()

        return finish

    @property
    def finisher(self) -> Executor:
        return self.pool.finisher

    def key(
        self, packed: PackedBatch, widths: Sequence[int], plan: SearchPlan, legal: LegalTensors | None
    ) -> SearchKey | None:
        """Of the graph that serves this batch; None where none does."""
        placed = legal if isinstance(legal, PlacedLegal) else None
        if legal is not None and placed is None:
            return None
        slots = None if placed is None else placed.slots
        place = None if placed is None else (self._numbers[placed.slots], placed.slot)
        size = packed.num_samples, packed.num_tokens, max(LEAST_ROWS, *widths)
        every = [each.buckets.choose(*size) for each in self._prepared.get(slots, ()) if each.plan == plan]
        # Whoever asked for it: two pipelines of one plan may want batches of different kinds.
        bucket = min(filter(None, every), key=BeamBucket.cost, default=None)
        return None if bucket is None else SearchKey(plan, place, bucket)

    def hold(
        self, packed: PackedBatch, widths: Sequence[int], plan: SearchPlan, legal: LegalTensors | None = None
    ) -> Callable[[], None]:
        """Fill this lane's buffers with one batch; what comes back enqueues its graph on the caller's stream,
        for timing while nothing else runs. ValueError where no graph holds it."""
        key = self.key(packed, widths, plan, legal)
        if key is None:
            raise ValueError(f"{packed.num_samples} prompts, {packed.num_tokens} tokens: no graph holds them")
        captured = self.this_lane.find(key)
        if captured is None:
            raise ValueError(f"{key.bucket}: was not captured on this lane")
        captured.ends[0].inputs.fill(packed, widths)
        return captured.enqueue

    @property
    def this_lane(self) -> BeamGraphLane:
        lane: BeamGraphLane = self._mine.graphs
        return lane

    def _recapture(self, slots: LegalSlots, slot: int) -> None:
        """A graph at a time, so that requests that come meanwhile wait for one, not for all."""
        with self._capturing:
            for prepared in self._prepared.get(slots, ()):
                self._capture(prepared, slots, slot, again=True)

    def _capture(
        self, prepared: _Prepared, slots: LegalSlots | None, slot: int | None, *, again: bool = False
    ) -> None:
        """Every bucket on every lane; `again`: in place of graphs that are there, one after the other."""
        number = None if slots is None else self._numbers.get(slots)
        if slots is not None and number is None:
            return  # released meanwhile
        placed = None if slots is None or slot is None else slots.whole(slot)
        place = None if number is None or slot is None else (number, slot)
        keys = [SearchKey(prepared.plan, place, bucket) for bucket in prepared.buckets.all]
        at_once = 1 if again else len(keys)
        for first in range(0, len(keys), at_once):
            some = keys[first : first + at_once]
            self.pool.on_every_lane(partial(self._capture_some, slots, some, prepared.head, placed, again))

    def _capture_some(
        self, slots: LegalSlots | None, keys: Sequence[SearchKey], head: Head, legal: LegalTensors | None,
        again: bool,
    ) -> None:  # fmt: skip
        if slots is not None and slots not in self._numbers:
            return  # released meanwhile: what this lane captures now, nobody would drop
        with self._counted(), quiet_collector():
            self.this_lane.reserve([key.bucket for key in keys])
            for key in keys:
                if again or self.this_lane.find(key) is None:  # a pipeline may open once more
                    self.this_lane.capture(key, head, legal, afresh=again)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Alone on the device, and what its memory loses or gets back is this lane's."""
        with self.pool.alone():
            torch.cuda.empty_cache()  # or what others left would be reused, or freed, and counted wrongly
            free = torch.cuda.mem_get_info(self.device)[0]
            yield
            torch.cuda.empty_cache()  # what runs before captures took
            self._lane_bytes[self.pool.this_place] += free - torch.cuda.mem_get_info(self.device)[0]

    def _open_passes(self) -> tuple[Passes, Passes]:
        with self._counted():
            return super()._open_passes()

    def _make_cache(self, prompt: Passes, step: Passes) -> BeamCache | KeptCache:
        with self._counted():
            return super()._make_cache(prompt, step)

    def _open(self) -> None:
        super()._open()
        self._mine.graphs = BeamGraphLane(self.pool.this_lane, self._mine.cache, self.device)
        self._lanes.append(self._mine.graphs)
