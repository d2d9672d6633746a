"""The legal sequences of a search: a prefix set as flat tensors, and where a node gets its current version.

A search keeps one node of the set per beam; only the tokens on that node's edges may follow. Immutable once
made; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

ROOT = 0


@dataclass(frozen=True)
class LegalTensors:
    """Node 0 is the root; the edges of node n are [offsets[n], offsets[n+1]), tokens ascending; a leaf has
    none."""

    offsets: Tensor  # int32[N+1]
    tokens: Tensor  # int32[E]
    children: Tensor  # int32[E], the node that an edge leads to
    max_degree: tuple[int, ...]  # of the nodes of each level 0..D: bounds the gather of a step


@runtime_checkable
class LegalSet(Protocol):
    """One version of the legal sequences, whole: results of a request come from one of them alone."""

    @property
    def version(self) -> str:
        """Names the content: a digest of the file it came from."""

    @property
    def tensors(self) -> LegalTensors:
        """On the device of the search."""

    def item_ids(self, leaves: Sequence[int]) -> list[list[str | int]]:
        """Of each node all items whose sequence ends there; none where none does."""


LegalProvider: TypeAlias = Callable[[], LegalSet]
"""Asked once a batch: whoever swaps a version swaps what this returns, between two batches."""
