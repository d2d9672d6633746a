"""Models small enough to enumerate, and the plainest searches over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.beam.frontier import Frontier, Rules
from engine.beam.legal import LegalTensors
from engine.beam.search import Head, search

TokenIds = tuple[int, ...]
NextLogits = Callable[[TokenIds], Tensor]  # prompt and tokens so far -> float32[V]


class TableModel:
    """Hidden states are the logits themselves; sequences are followed through the ancestors alone."""

    def __init__(self, prompts: Sequence[TokenIds], width: int, slots: int, logits: NextLogits) -> None:
        self.slots, self._prompts, self._width, self._logits = slots, prompts, width, logits
        self._written: list[Tensor] = []

    def prompt(self) -> Tensor:
        return torch.stack([self._logits(prompt) for prompt in self._prompts])

    def step(self, tokens: Tensor, step: int, ancestors: Tensor) -> Tensor:
        assert bool((ancestors[step:] == -1).all())
        self._written.append(tokens)
        rows = []
        for row in range(len(tokens)):
            suffix = [int(self._written[j][ancestors[j, row]]) for j in range(step)]
            prompt = self._prompts[row // self._width]
            rows.append(self._logits((*prompt, *suffix, int(tokens[row]))))
        return torch.stack(rows)


@dataclass(frozen=True)
class Found:
    """The live beams of one prompt."""

    tokens: list[TokenIds]
    scores: list[float]
    closed: list[bool]
    nodes: list[int]


def found(frontier: Frontier, prompt: int) -> Found:
    live = [i for i, score in enumerate(frontier.scores[prompt].tolist()) if score != -math.inf]
    lengths = frontier.lengths[prompt].tolist()
    tokens = frontier.tokens[prompt].tolist()
    return Found(
        [tuple(tokens[i][: lengths[i]]) for i in live],
        [frontier.scores[prompt, i].item() for i in live],
        [] if frontier.closed is None else [bool(frontier.closed[prompt, i]) for i in live],
        [] if frontier.nodes is None else [int(frontier.nodes[prompt, i]) for i in live],
    )


def run_table(
    prompts: Sequence[TokenIds],
    logits: NextLogits,
    width: int,
    steps: int,
    *,
    widths: Sequence[int] | None = None,
    end_tokens: Sequence[int] | None = None,
    legal: LegalTensors | None = None,
    slices: tuple[tuple[int, int], ...] | None = None,
) -> tuple[list[Found], Tensor]:
    """Prompts and logits -> what the search found for each, and which failed."""
    vocabulary = len(logits(prompts[0]))
    rules = Rules(
        width,
        torch.tensor(widths or [width] * len(prompts)),
        None if end_tokens is None else torch.tensor(end_tokens),
        legal,
    )
    model = TableModel(prompts, width, steps + 1, logits)
    frontier = search(model, Head(torch.eye(vocabulary), slices), rules, steps)
    return [found(frontier, i) for i in range(len(prompts))], frontier.failed


def random_logits(vocabulary: int, *, levels: int | None = None, seed: int = 0) -> NextLogits:
    """Logits that depend on the whole sequence; with `levels`, only so many different values: many ties."""
    known: dict[TokenIds, Tensor] = {}

    def logits(sequence: TokenIds) -> Tensor:
        if sequence not in known:
            generator = torch.Generator().manual_seed(hash((seed, *sequence)) % 2**31)
            if levels is None:
                known[sequence] = torch.randn(vocabulary, generator=generator) * 2
            else:
                known[sequence] = torch.randint(levels, (vocabulary,), generator=generator).float()
        return known[sequence]

    return logits


def plain_search(
    prompt: TokenIds,
    logits: NextLogits,
    width: int,
    steps: int,
    *,
    ends: Sequence[int] | None = None,
    allowed: Callable[[TokenIds], set[int]] | None = None,
    slices: tuple[tuple[int, int], ...] | None = None,
) -> list[tuple[TokenIds, float, bool]]:
    """The definition, one candidate at a time: (sequence, score, finished), best first."""
    beams: list[tuple[TokenIds, Tensor, bool]] = [((), torch.zeros(()), False)]
    for position in range(steps + 1):
        candidates = []
        for parent, (sequence, score, finished) in enumerate(beams):
            if finished:
                candidates.append((-score.item(), parent, 0, sequence, score, True))
                continue
            row = logits((*prompt, *sequence))
            begin, end = slices[position] if slices else (0, len(row))
            row = row[begin:end]
            scores = (row - row.logsumexp(-1)) + score
            for column in range(len(row)):
                token = begin + column
                grown = (*sequence, token)
                if allowed is not None and token not in allowed(sequence):
                    continue
                whole = ends is not None and (token in ends or (allowed is not None and not allowed(grown)))
                candidates.append((-scores[column].item(), parent, token, grown, scores[column], whole))
        candidates.sort(key=lambda each: each[:3])
        beams = [(sequence, score, whole) for *_, sequence, score, whole in candidates[:width]]
    return [(sequence, score.item(), whole) for sequence, score, whole in beams]
