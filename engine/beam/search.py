"""The whole search: prompts, first expansion, then every decode step and selection, results still on the
device.

Knows a model only as two calls. Nothing here reads a tensor's value, so that on CUDA the whole chain can be
captured once shapes are fixed; a caller copies the result back once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.beam.frontier import Frontier, Rules, expand, start
from engine.beam.selection import RawLogits
from engine.ops.portable.beam_advance import beam_advance

_LOGITS_AT_ONCE = 1 << 25  # entries of one product of the head, on a CPU: 128 MB of float32


class BeamModel(Protocol):
    """A decoder with the state of one batch: S prompts, then rows = S * width beams."""

    slots: int  # the most decode steps

    def prompt(self) -> Tensor:
        """Read the prompts, keep their keys and values -> hidden[S, H] of each one's last token."""

    def step(self, tokens: Tensor, step: int, ancestors: Tensor) -> Tensor:
        """Append tokens int64[rows] at position `step` after their prompts -> hidden[rows, H].

        ancestors int64[slots, rows]: the row that wrote slot j of a beam's suffix, -1 from `step` on; this
        call writes slot `step`.
        """


@dataclass(frozen=True)
class Head:
    """Which rows of the vocabulary matter at each position of a sequence; None: all of them at each."""

    weight: Tensor  # [V, H]
    slices: tuple[tuple[int, int], ...] | None = None  # [start, stop) a position
    at_once: int = _LOGITS_AT_ONCE

    def bounds(self, position: int) -> tuple[int, int]:
        return (0, self.weight.shape[0]) if self.slices is None else self.slices[position]

    def logits(self, hidden: Tensor, position: int) -> Tensor | RawLogits:
        """hidden[S, B, H] -> [S, B, rows of the slice]; only those are multiplied."""
        begin, end = self.bounds(position)
        return F.linear(hidden, self.weight[begin:end])


@dataclass(frozen=True)
class SearchPlan:
    """What stays the same from request to request. end_tokens: those that finish a beam; None: none do."""

    steps: int
    end_tokens: tuple[int, ...] | None = None
    slices: tuple[tuple[int, int], ...] | None = None


def search(model: BeamModel, head: Head, rules: Rules, steps: int) -> Frontier:
    """Sequences of `steps` + 1 tokens; NaN or infinity in one prompt's logits marks that one as failed."""
    num_prompts, width = len(rules.widths), rules.width
    frontier = _expand_all(start(num_prompts, steps + 1, rules), model.prompt().unsqueeze(1), head, rules, 0)
    ancestors: Tensor | None = None
    for step in range(steps):
        ids, ancestors = beam_advance(ancestors, frontier.parents, frontier.tokens, model.slots, step)
        hidden = model.step(ids, step, ancestors)
        frontier = _expand_all(frontier, hidden.view(num_prompts, width, -1), head, rules, step + 1)
    return frontier


def _expand_all(frontier: Frontier, hidden: Tensor, head: Head, rules: Rules, position: int) -> Frontier:
    """One expansion, so many prompts at a time as keep the logits small; prompts do not see each other."""
    begin, end = head.bounds(position)
    at_once = max(1, head.at_once // (hidden.shape[1] * (end - begin)))
    parts = []
    for low in range(0, len(hidden), at_once):
        part = slice(low, low + at_once)
        logits = head.logits(hidden[part], position)
        some = Rules(rules.width, rules.widths[part], rules.end_tokens, rules.legal)
        parts.append(expand(_part(frontier, part), logits, some, begin, position))
    return parts[0] if len(parts) == 1 else _join(parts)


def _part(frontier: Frontier, part: slice) -> Frontier:
    columns: dict[str, Any] = {name: None if x is None else x[part] for name, x in vars(frontier).items()}
    return Frontier(**columns)


def _join(parts: list[Frontier]) -> Frontier:
    columns: dict[str, Any] = {
        name: None if x is None else torch.cat([vars(part)[name] for part in parts])
        for name, x in vars(parts[0]).items()
    }
    return Frontier(**columns)
