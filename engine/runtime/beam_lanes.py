"""Beam searches on an artifact's lanes: a runner a lane for each of the two packages, and suffixes' memory.

`search` runs on a lane's thread, like LanePool.run, and like it leaves the interpreter to others while a
package or an operation of torch computes. Results come back on the CPU in one go, after the last step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from threading import local
from typing import Any

import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.beam.cache import BeamCache, CacheShape
from engine.beam.frontier import Frontier, Rules
from engine.beam.head_weight import HeadWeight
from engine.beam.kept_cache import KeptCache, KeptShape
from engine.beam.legal import LegalTensors
from engine.beam.search import SearchPlan, search
from engine.manifest import PROMPT_PACKAGE, STEP_PACKAGE
from engine.packed import BatchBounds, PackedBatch, pack
from engine.runtime.beam_buckets import SearchSizes, whole_steps
from engine.runtime.lanes import LanePool
from engine.runtime.legal_slots import LegalSlots
from engine.runtime.load_report import LoadReport

LEAST_ROWS = 2  # a compiled package treats one as special
Passes = Callable[[list[Tensor]], list[Tensor]]


class BeamLanes:
    """Opens the packages in `folder` on every lane of `pool` and runs each once; ended by the pool's end."""

    def __init__(
        self,
        pool: LanePool,
        folder: Path,
        bounds: BeamBounds,
        head: HeadWeight,
        architecture: Mapping[str, Any],
        kept: BatchBounds | None = None,
    ) -> None:
        """`kept`: the artifact's bounds, where its packages write keys and values in place."""
        self.pool, self.bounds = pool, bounds
        self._folder, self._head, self._kept, self._architecture = folder, head, kept, architecture
        self._mine = local()
        started = time.monotonic()
        pool.on_every_lane(self._open)
        self._seconds = time.monotonic() - started  # of loading

    @property
    def device(self) -> torch.device:
        return self._head.weight.device

    @property
    def fallbacks(self) -> int:
        """Searches since load that should have been captured and were not; none are where nothing is."""
        return 0

    @property
    def load_report(self) -> LoadReport:
        """What searches took beside their pool's own load."""
        return LoadReport(self._seconds, 0, 0, ())

    def prepare(self, plan: SearchPlan, sizes: SearchSizes, slots: LegalSlots | None = None) -> None:
        """Tell which searches will come, before they do: lanes that capture graphs make them now."""

    def make_slots(self) -> LegalSlots | None:
        """Where a pipeline's legal sequences are kept, if lanes read them from places of their own."""
        return None

    def release(self, slots: LegalSlots | None) -> None:
        """A pipeline closes: what was made for its legal sequences may go. Idempotent."""

    def search(
        self, packed: PackedBatch, widths: Sequence[int], plan: SearchPlan, legal: LegalTensors | None = None
    ) -> Frontier:
        """widths: of each prompt, at least 1. `legal` is on `device`. Everything of the answer is on the CPU;
        it has the batch's greatest width, and a prompt's beams past its own are dead.

        ValueError for a batch, a width or steps over the bounds, or an unknown token.
        """
        self._check(packed, widths, plan)
        cache: BeamCache | KeptCache | None = getattr(self._mine, "cache", None)
        if cache is None:
            raise RuntimeError("not a lane's thread: submit the work to LanePool.executor")
        width = max(LEAST_ROWS, *widths)  # also where one prompt has width 1
        fields: list[str] = []

        def work() -> tuple[Tensor, ...]:
            limits = torch.tensor(widths, device=self.device)
            ends = None if plan.end_tokens is None else torch.tensor(plan.end_tokens, device=self.device)
            cache.load(packed, width)
            try:
                found = search(cache, self._head.of(plan), Rules(width, limits, ends, legal), plan.steps)
            finally:
                cache.release()
            columns = {name: x for name, x in vars(found).items() if x is not None}
            fields.extend(columns)
            return tuple(columns.values())

        columns: dict[str, Any] = {"closed": None, "nodes": None}
        columns.update(zip(fields, self.pool.compute(work), strict=True))
        return Frontier(**columns)

    def begin(
        self,
        packed: PackedBatch,
        widths: Sequence[int],
        plan: SearchPlan,
        legal: LegalTensors | None = None,
        lead_s: float = 0.0,
    ) -> Callable[[], Frontier]:
        """`search` in two parts, the first on a lane's thread: it returns once the lane may take another
        batch, which comes `lead_s` later. What it returns waits for the results; to be called once, on any
        thread."""
        found = self.search(packed, widths, plan, legal)
        return lambda: found

    @property
    def finisher(self) -> Executor | None:
        """Where second parts go; None where the first one does all of the work."""
        return None

    def _check(self, packed: PackedBatch, widths: Sequence[int], plan: SearchPlan) -> None:
        self.pool.check(packed)
        given = {"prompts": packed.num_samples, "width": max(widths), "steps": plan.steps}
        for key, value in given.items():
            if value > getattr(self.bounds, key):
                raise ValueError(f"beam.{key} = {value}: over the artifact's {getattr(self.bounds, key)}")
        if len(widths) != packed.num_samples or min(widths) < 1:
            raise ValueError(f"widths = {list(widths)}: one a prompt, at least 1")

    def _open(self) -> None:
        prompt, step = self._open_passes()
        self._mine.cache = self._make_cache(prompt, step)
        BeamLanes.search(
            self, pack([[0]]), [1], SearchPlan(1)
        )  # loads and allocates: not a request's business

    def _open_passes(self) -> tuple[Passes, Passes]:
        prompt, step = (
            self.pool.open_package(self._folder / name) for name in (PROMPT_PACKAGE, STEP_PACKAGE)
        )
        return prompt.run, step.run

    def _make_cache(self, prompt: Passes, step: Passes) -> BeamCache | KeptCache:
        a, bounds, weight = self._architecture, self.bounds, self._head.weight
        layers, heads, head_dim = a["num_layers"], a["num_kv_heads"], a["head_dim"]
        if self._kept is None:
            shape = CacheShape(layers, bounds.steps, bounds.rows, heads, head_dim)
            return BeamCache(prompt, step, shape, weight.dtype, self.device)
        tokens = whole_steps(self._kept.tokens + bounds.prompts + 1)  # padding: a token a prompt
        kept = KeptShape(layers, bounds.steps, tokens, bounds.rows, heads, head_dim)
        return KeptCache(prompt, step, kept, weight.dtype, self.device)
