"""What eight bits save, by kind of matrix and scheme: the times that a plan is chosen by, whoever found them.

Each kind is taken alone: a layer with that kind in the scheme and the rest in bf16 against the layer all in
bf16, so that what its inputs cost to make is in the difference. A plan's time is taken for the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.quant.emulation import Place
from engine.quant.schemes import ROTATED, Scheme

TOKENS = 4096  # that microseconds are of


@dataclass(frozen=True)
class Times:
    """Microseconds a layer and TOKENS tokens.

    `source`: how they were found, as reports say it; `layer`: in bf16, attention and norms included; `saved`:
    by kind and scheme, what is not named saves nothing; `exact`: by kind, what the exact scales of an int8
    residual take of that; `batches`: token counts that were measured."""

    source: str
    layer: float
    saved: Mapping[str, Mapping[str, float]]
    exact: Mapping[str, float]
    batches: tuple[int, ...] = ()

    def saved_us(self, kind: str, scheme: Scheme, *, exact: bool = False) -> float:
        """By one matrix; below zero where the scheme is the slower one."""
        saved = self.saved.get(kind, {})
        name = "int8" if scheme in ROTATED and scheme not in saved else scheme
        return saved.get(name, 0.0) - (self.exact.get(kind, 0.0) if exact else 0.0)

    def plan_us(
        self, num_layers: int, plan: Mapping[Place, Scheme], exact: frozenset[Place] = frozenset()
    ) -> float:
        """All layers; places that `plan` does not name are bf16."""
        saved = sum(self.saved_us(place[1], scheme, exact=place in exact) for place, scheme in plan.items())
        return num_layers * self.layer - saved
