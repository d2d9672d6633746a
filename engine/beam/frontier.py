"""The beams of a batch between two steps, and one step of the search on them.

Everything is [S, B, ...]: S requests' prompts of B beams each, B = 1 before the first expansion and the
batch's width after it. Static shapes, no synchronisation, nothing written in place: a step can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.beam.legal import ROOT, LegalTensors
from engine.beam.selection import Rows, select

_DEAD = float("-inf")


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
    """One empty beam a prompt."""
    device = rules.widths.device
    shape = (num_prompts, 1)
    whole = torch.zeros(shape, dtype=torch.int64, device=device)
    return Frontier(
        scores=torch.zeros(shape, device=device),
        tokens=whole.unsqueeze(-1).expand(-1, -1, length),
        lengths=whole,
        closed=None if rules.end_tokens is None else whole.bool(),
        nodes=None if rules.legal is None else whole + ROOT,
        parents=whole,
        failed=torch.zeros(num_prompts, dtype=torch.bool, device=device),
    )


def expand(frontier: Frontier, logits: Tensor, rules: Rules, first_token: int, step: int) -> Frontier:
    """The best `width` continuations: logits float32[S, B, C], of the tokens from `first_token` on.

    Log-probabilities are normalised over all C of them, legal or not.
    """
    is_open = frontier.scores != _DEAD
    if frontier.closed is not None:
        is_open = is_open & ~frontier.closed
    low, high = torch.aminmax(logits, dim=-1)
    failed = frontier.failed | (is_open & ~(low.isfinite() & high.isfinite())).any(-1)
    norms = logits.logsumexp(-1)
    edges = None
    if rules.legal is not None and frontier.nodes is not None:
        edges = _edges(rules.legal, frontier.nodes, step)
        logits = _legal_logits(logits, rules.legal, edges, first_token)
    best = select(logits, Rows(norms, frontier.scores, frontier.closed), rules.width)
    ranks = torch.arange(rules.width, device=logits.device)
    scores = torch.where(ranks < rules.widths.unsqueeze(-1), best.scores, _DEAD)
    nodes = None
    if edges is None or rules.legal is None:
        chosen = best.columns + first_token
    else:
        edge = edges.starts.gather(1, best.parents) + best.columns
        edge = edge.clamp_max(rules.legal.tokens.shape[0] - 1)
        chosen, nodes = rules.legal.tokens[edge].long(), rules.legal.children[edge].long()
    return _follow(frontier, best.parents, chosen, nodes, rules, step, scores, failed)


def _follow(
    before: Frontier, parents: Tensor, chosen: Tensor, nodes: Tensor | None, rules: Rules, step: int,
    scores: Tensor, failed: Tensor,
) -> Frontier:  # fmt: skip
    """Each new beam: its parent's history, and the token chosen unless the parent was finished."""
    grows = torch.ones_like(chosen)
    closed = None
    if before.closed is not None and rules.end_tokens is not None:
        was_closed = before.closed.gather(1, parents)
        ends = torch.isin(chosen, rules.end_tokens)
        if nodes is not None and before.nodes is not None and rules.legal is not None:
            nodes = torch.where(was_closed, before.nodes.gather(1, parents), nodes)
            ends = ends | (rules.legal.offsets[nodes + 1] == rules.legal.offsets[nodes])
        closed = was_closed | ends
        grows = (~was_closed).long()
    tokens = before.tokens.gather(1, parents.unsqueeze(-1).expand(-1, -1, before.tokens.shape[-1]))
    here = torch.arange(tokens.shape[-1], device=tokens.device) == step
    tokens = torch.where(here, (chosen * grows).unsqueeze(-1), tokens)
    lengths = before.lengths.gather(1, parents) + grows
    return Frontier(scores, tokens, lengths, closed, nodes, parents, failed)


@dataclass(frozen=True)
class _Edges:
    starts: Tensor  # int64[S, B]
    index: Tensor  # int64[S, B, most edges of this level]
    exist: Tensor  # bool, alike


def _edges(legal: LegalTensors, nodes: Tensor, step: int) -> _Edges:
    starts, stops = legal.offsets[nodes].long(), legal.offsets[nodes + 1].long()
    most = max(legal.max_degree[step] if step < len(legal.max_degree) else 0, 1)
    index = starts.unsqueeze(-1) + torch.arange(most, device=nodes.device)
    exist = index < stops.unsqueeze(-1)
    return _Edges(starts, torch.where(exist, index, 0), exist)


def _legal_logits(logits: Tensor, legal: LegalTensors, edges: _Edges, first_token: int) -> Tensor:
    """The logits of each beam's legal tokens, one column an edge: so columns keep the tokens' order."""
    columns = legal.tokens[edges.index].long() - first_token
    inside = edges.exist & (columns >= 0) & (columns < logits.shape[-1])
    values = logits.gather(-1, columns.clamp(0, logits.shape[-1] - 1))
    return torch.where(inside, values, _DEAD)
