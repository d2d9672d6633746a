"""What goes into a pipeline's batch and what comes out: one Prepared in, one Result out, same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.demand import NOTHING, Demand
from engine.prefixes import NOTHING_SAVED, Saved

Observer: TypeAlias = Callable[[str, object], None]
"""Told a node's name and the value it gave for one request; on whatever thread ran the node."""


def always() -> bool:
    return True


@dataclass
class Prepared:
    """One request after its PREPARE nodes, ready to share a batch.

    num_tokens are those of whole prompts, of several tokenizers the one with most; `demand` is what batching
    counts: a model computes fewer where prefixes spare it some (Answer.saved), and more where it searches.
    `wanted` is asked on the lane's thread right before a model node launches; it must be quick, and
    thread-safe (branches).
    `observe`, where there is one, is told every node's value, for whoever must find out why.
    """

    values: Mapping[str, object]  # by node, those that EXECUTE nodes read
    num_tokens: int
    num_samples: int
    wanted: Callable[[], bool] = always
    observe: Observer | None = None
    demand: Demand = NOTHING  # NOTHING: as many tokens and samples as these

    def __post_init__(self) -> None:
        if self.demand is NOTHING:
            self.demand = Demand(self.num_tokens, self.num_samples)


@dataclass(frozen=True)
class Answer:
    """rows: one map of plain values a sample, without ids. gpu_ms: sum over the model nodes of its batch.
    saved: tokens of its prompts that prefixes spared the model nodes."""

    rows: tuple[dict[str, object], ...]
    model_runs: int
    gpu_ms: float
    saved: Saved = NOTHING_SAVED


@dataclass(frozen=True)
class Dropped:
    """`wanted` said no. model_runs is 0 unless an earlier or a concurrent model node had launched by then."""

    model_runs: int


@dataclass(frozen=True)
class Failure:
    """This request alone could not be answered."""

    message: str
    code: Literal["invalid", "too_large", "internal", "model_output"]
    field: str | None
    model_runs: int


Result: TypeAlias = Answer | Dropped | Failure
