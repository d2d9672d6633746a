"""The legal sequences of a search: a prefix set as flat tensors, and where a node gets its current version.

A search keeps one node of the set per beam; only the tokens on that node's edges may follow. Immutable once
made; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

ROOT = 0
_NEVER = float("-inf")


@dataclass(frozen=True)
class LegalTensors:
    """Node 0 is the root; the edges of node n are [offsets[n], offsets[n+1]), tokens ascending; a leaf has
    none."""

    offsets: Tensor  # int32[N+1]
    tokens: Tensor  # int32[E]
    children: Tensor  # int32[E], the node that an edge leads to
    max_degree: tuple[int, ...]  # of the nodes of each level 0..D, or more: bounds the work of a step

    def most_edges(self, level: int) -> int:
        """Of a node there, at least 1; nodes past the last level are leaves."""
        return max(self.max_degree[level] if level < len(self.max_degree) else 0, 1)


@dataclass(frozen=True)
class Edges:
    """Those of each beam's node."""

    starts: Tensor  # int64[S, B]
    index: Tensor  # int64[S, B, most edges of this level]
    exist: Tensor  # bool, alike


def find_edges(offsets: Tensor, nodes: Tensor, most: int) -> Edges:
    """Of nodes int64[S, B], none with more than `most`."""
    starts, stops = offsets[nodes].long(), offsets[nodes + 1].long()
    index = starts.unsqueeze(-1) + torch.arange(most, device=nodes.device)
    exist = index < stops.unsqueeze(-1)
    return Edges(starts, torch.where(exist, index, 0), exist)


def legal_logits(logits: Tensor, tokens: Tensor, edges: Edges, first_token: int) -> Tensor:
    """The logits of each beam's legal tokens, one column an edge: so columns keep the tokens' order."""
    columns = tokens[edges.index].long() - first_token
    inside = edges.exist & (columns >= 0) & (columns < logits.shape[-1])
    values = logits.gather(-1, columns.clamp(0, logits.shape[-1] - 1))
    return torch.where(inside, values, _NEVER)


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
