"""Beam searches on an artifact's lanes: a runner a lane for each of the two packages, and suffixes' memory.

`search` runs on a lane's thread, like LanePool.run, and like it leaves the interpreter to others while a
package or an operation of torch computes. Results come back on the CPU in one go, after the last step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import local
from typing import Any

import torch
from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.beam.cache import BeamCache, CacheShape
from engine.beam.frontier import Frontier, Rules
from engine.beam.legal import LegalTensors
from engine.beam.search import Head, SearchPlan, search
from engine.manifest import PROMPT_PACKAGE, STEP_PACKAGE
from engine.packed import PackedBatch, pack
from engine.runtime.lanes import LanePool

_LEAST_ROWS = 2  # a compiled package treats one as special


class BeamLanes:
    """Opens the packages in `folder` on every lane of `pool` and runs each once; ended by the pool's end."""

    def __init__(
        self,
        pool: LanePool,
        folder: Path,
        bounds: BeamBounds,
        head_weight: Tensor,
        architecture: Mapping[str, Any],
    ) -> None:
        self.pool, self.bounds = pool, bounds
        self._folder, self._head = folder, head_weight
        layers, heads = architecture["num_layers"], architecture["num_kv_heads"]
        self._shape = CacheShape(layers, bounds.steps, bounds.rows, heads, architecture["head_dim"])
        self._mine = local()
        pool.on_every_lane(self._open)

    @property
    def device(self) -> torch.device:
        return self._head.device

    def search(
        self,
        packed: PackedBatch,
        widths: Sequence[int],
        plan: SearchPlan,
        legal: LegalTensors | None = None,
    ) -> Frontier:
        """widths: of each prompt, at least 1. `legal` is on `device`. Everything of the answer is on the CPU;
        it has the batch's greatest width, and a prompt's beams past its own are dead.

        ValueError for a batch, a width or steps over the bounds, or an unknown token.
        """
        self._check(packed, widths, plan)
        cache: BeamCache | None = getattr(self._mine, "cache", None)
        if cache is None:
            raise RuntimeError("not a lane's thread: submit the work to LanePool.executor")
        width = max(_LEAST_ROWS, *widths)  # also where one prompt has width 1
        fields: list[str] = []

        def work() -> tuple[Tensor, ...]:
            limits = torch.tensor(widths, device=self.device)
            ends = None if plan.end_tokens is None else torch.tensor(plan.end_tokens, device=self.device)
            cache.load(packed, width)
            try:
                found = search(
                    cache, Head(self._head, plan.slices), Rules(width, limits, ends, legal), plan.steps
                )
            finally:
                cache.release()
            columns = {name: x for name, x in vars(found).items() if x is not None}
            fields.extend(columns)
            return tuple(columns.values())

        columns: dict[str, Any] = {"closed": None, "nodes": None}
        columns.update(zip(fields, self.pool.compute(work), strict=True))
        return Frontier(**columns)

    def _check(self, packed: PackedBatch, widths: Sequence[int], plan: SearchPlan) -> None:
        self.pool.check(packed)
        given = {"prompts": packed.num_samples, "width": max(widths), "steps": plan.steps}
        for key, value in given.items():
            if value > getattr(self.bounds, key):
                raise ValueError(f"beam.{key} = {value}: over the artifact's {getattr(self.bounds, key)}")
        if len(widths) != packed.num_samples or min(widths) < 1:
            raise ValueError(f"widths = {list(widths)}: one a prompt, at least 1")

    def _open(self) -> None:
        prompt, step = (
            self.pool.open_package(self._folder / name) for name in (PROMPT_PACKAGE, STEP_PACKAGE)
        )
        self._mine.cache = BeamCache(prompt.run, step.run, self._shape, self._head.dtype, self.device)
        self.search(pack([[0]]), [1], SearchPlan(1))  # the first run loads and allocates: not a request's
