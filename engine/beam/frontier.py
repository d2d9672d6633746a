"""The beams of a batch between two steps, and one step of the search on them.

Everything is [S, B, ...]: S requests' prompts of B beams each, B = 1 before the first expansion and the
batch's width after it. Static shapes, no synchronisation, nothing written in place: a step can be captured.
Its arithmetic is two operations, three where the head is in 8 bits, each plain torch on a CPU and kernels on
CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.beam.legal import ROOT, LegalTensors
from engine.beam.selection import RawLogits
from engine.ops.portable.beam_follow import Beams, beam_follow
from engine.ops.portable.beam_rescore import beam_rescore
from engine.ops.portable.beam_select import beam_select


@dataclass(frozen=True)
class Frontier:
    """Best first within each request. A beam with score -inf is dead: there was nothing left to put there."""

    scores: Tensor  # float32[S, B], sum of log-probabilities
    tokens: Tensor  # int64[S, B, steps + 1], zeros where none is chosen yet
    lengths: Tensor  # int64[S, B]
    closed: Tensor | None  # bool[S, B], finished; None where nothing ever finishes
    nodes: Tensor | None  # int64[S, B] in the legal sequences
    parents: Tensor  # int64[S, B], the beam of the step before that each one continues
    failed: Tensor  # bool[S], some open beam had logits that are not finite


@dataclass(frozen=True)
class Rules:
    """What may follow, and when a sequence ends. `widths` int64[S]: ranks from there on are dropped."""

    width: int
    widths: Tensor
    end_tokens: Tensor | None  # int64[E]; None: a sequence ends when it is as long as all others
    legal: LegalTensors | None


def start(num_prompts: int, length: int, rules: Rules) -> Frontier:
    """One empty beam a prompt. All of it is zero and views of one memory: one kernel fills it."""
    assert ROOT == 0
    shape = (num_prompts, 1)
    zeros = torch.zeros(num_prompts * length, dtype=torch.int64, device=rules.widths.device)
    numbers, flags = zeros[:num_prompts].view(shape), zeros.view(torch.bool)[:num_prompts]
    return Frontier(
        scores=zeros.view(torch.float32)[:num_prompts].view(shape),
        tokens=zeros.view(*shape, length),
        lengths=numbers,
        closed=None if rules.end_tokens is None else flags.view(shape),
        nodes=None if rules.legal is None else numbers,
        parents=numbers,
        failed=flags,
    )


def expand(
    frontier: Frontier, logits: Tensor | RawLogits, rules: Rules, first_token: int, step: int
) -> Frontier:
    """The best `width` continuations: logits[S, B, C] of the tokens from `first_token` on.

    Log-probabilities are normalised over all C of them, legal or not.
    """
    legal, tree = rules.legal, None
    if legal is not None and frontier.nodes is not None:
        tree = frontier.nodes, legal.offsets, legal.tokens
    values, scales = (logits.values, logits.scales) if isinstance(logits, RawLogits) else (logits, None)
    exact = logits.exact if isinstance(logits, RawLogits) else None
    more: Any = {
        "closed": frontier.closed, "legal": tree, "first_token": first_token,
        "max_degree": 0 if legal is None else legal.most_edges(step),
    }  # fmt: skip
    count = rules.width
    if exact is not None:
        columns = values.shape[2] if legal is None else more["max_degree"]
        count = exact.pool.size(count, values.shape[1], columns)
    best = beam_select(values, frontier.scores, count, scales=scales, **more)
    if exact is not None:
        best = beam_rescore(best, exact, frontier.scores, rules.widths, rules.width, **more)
    edges = None if legal is None else (legal.offsets, legal.tokens, legal.children)
    before = Beams(frontier.tokens, frontier.lengths, frontier.closed, frontier.nodes, frontier.failed)
    scores, after = beam_follow(
        best,
        before,
        rules.widths,
        edges=edges,
        end_tokens=rules.end_tokens,
        first_token=first_token,
        step=step,
    )
    return Frontier(
        scores, after.tokens, after.lengths, after.closed, after.nodes, best.parents, after.failed
    )
