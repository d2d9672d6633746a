"""boundgen::beam_follow: what each chosen continuation inherits from its parent, and what it adds.

    tokens = tokens[parent] with the chosen one at `step`         lengths = lengths[parent] + 1
    node   = where the chosen edge leads                          closed  = it ends: an end token, or a leaf

A finished parent passes on what it had. One launch in place of some twenty operations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable.beam_select import Continuations
from engine.ops.portable.language import cdiv, jit, register, tl

_BLOCK = 128  # beams a program
_Out = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Beams:
    """Of S requests, B each, as in engine.beam.frontier: int64, but for flags."""

    tokens: Tensor  # [S, B, steps + 1]
    lengths: Tensor  # [S, B]
    closed: Tensor | None  # bool[S, B]
    nodes: Tensor | None  # [S, B]
    failed: Tensor  # bool[S]


@jit
def _beam_follow(
    best_scores, parents, columns, bad, tokens, lengths, closed, nodes, failed, widths,
    offsets, edge_tokens, children, end_tokens,
    out_scores, out_tokens, out_lengths, out_closed, out_nodes, out_failed,
    width, num_beams, num_edges, first_token, step,
    LENGTH: tl.constexpr, ENDS: tl.constexpr, FINISH: tl.constexpr, LEGAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (requests, blocks of the new beams)."""
    request = tl.program_id(0).to(tl.int64)
    rank = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = rank < width
    at = request * width + rank
    parent = request * num_beams + tl.load(parents + at, mask=there, other=0)
    column = tl.load(columns + at, mask=there, other=0)
    score = tl.load(best_scores + at, mask=there, other=0.0)
    score = tl.where(rank < tl.load(widths + request), score, float("-inf"))
    tl.store(out_scores + at, score, mask=there)
    chosen = column + first_token
    grows = tl.full([BLOCK], 1, tl.int64)
    if LEGAL:
        before = tl.load(nodes + parent, mask=there, other=0)
        edge = tl.load(offsets + before, mask=there, other=0).to(tl.int64) + column
        edge = tl.minimum(edge, num_edges - 1)
        chosen = tl.load(edge_tokens + edge, mask=there, other=0).to(tl.int64)
        node = tl.load(children + edge, mask=there, other=0).to(tl.int64)
    if FINISH:
        was_closed = tl.load(closed + parent, mask=there, other=0) != 0
        ends = rank < 0
        for end in tl.static_range(ENDS):
            ends = ends | (chosen == tl.load(end_tokens + end))
        if LEGAL:
            node = tl.where(was_closed, before, node)
            first = tl.load(offsets + node, mask=there, other=0)
            ends = ends | (tl.load(offsets + node + 1, mask=there, other=0) == first)
        tl.store(out_closed + at, was_closed | ends, mask=there)
        grows = tl.where(was_closed, 0, grows)
    if LEGAL:
        tl.store(out_nodes + at, node, mask=there)
    tl.store(out_lengths + at, tl.load(lengths + parent, mask=there, other=0) + grows, mask=there)
    for place in tl.static_range(LENGTH):
        token = tl.load(tokens + parent * LENGTH + place, mask=there, other=0)
        token = tl.where(place == step, chosen * grows, token)
        tl.store(out_tokens + at * LENGTH + place, token, mask=there)
    if tl.program_id(1) == 0:
        is_bad = (tl.load(failed + request) != 0) | (tl.load(bad + request) != 0)
        tl.store(out_failed + request, is_bad)


def _allocate(
    best_scores: Tensor, parents: Tensor, columns: Tensor, bad: Tensor, tokens: Tensor, lengths: Tensor,
    closed: Tensor | None, nodes: Tensor | None, failed: Tensor, widths: Tensor, offsets: Tensor | None,
    edge_tokens: Tensor | None, children: Tensor | None, end_tokens: Tensor | None, first_token: int,
    step: int,
) -> _Out:  # fmt: skip
    none = lengths.new_empty((0,))
    return (
        torch.empty_like(best_scores),
        tokens.new_empty((*parents.shape, tokens.shape[2])),
        torch.empty_like(parents),
        none.bool() if closed is None else torch.empty_like(parents, dtype=torch.bool),
        none if nodes is None else torch.empty_like(parents),
        torch.empty_like(failed),
    )


def _oracle(
    best_scores: Tensor, parents: Tensor, columns: Tensor, bad: Tensor, tokens: Tensor, lengths: Tensor,
    closed: Tensor | None, nodes: Tensor | None, failed: Tensor, widths: Tensor, offsets: Tensor | None,
    edge_tokens: Tensor | None, children: Tensor | None, end_tokens: Tensor | None, first_token: int,
    step: int,
) -> _Out:  # fmt: skip
    """Where nothing ends, `closed` comes back as no tensor; where nothing is bounded, `nodes` does."""
    ranks = torch.arange(parents.shape[1], device=parents.device)
    scores = torch.where(ranks < widths.unsqueeze(-1), best_scores, float("-inf"))
    chosen, node = columns + first_token, lengths.new_empty((0,))
    grows, shut = torch.ones_like(chosen), node.bool()
    before = None if nodes is None else nodes.gather(1, parents)
    if before is not None and offsets is not None and edge_tokens is not None and children is not None:
        edge = (offsets[before].long() + columns).clamp_max(len(edge_tokens) - 1)
        chosen, node = edge_tokens[edge].long(), children[edge].long()
    if closed is not None and end_tokens is not None:
        was_closed = closed.gather(1, parents)
        shut = was_closed | torch.isin(chosen, end_tokens)
        if before is not None and offsets is not None:
            node = torch.where(was_closed, before, node)
            shut = shut | (offsets[node + 1] == offsets[node])
        grows = (~was_closed).long()
    history = tokens.gather(1, parents.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
    here = torch.arange(tokens.shape[-1], device=tokens.device) == step
    history = torch.where(here, (chosen * grows).unsqueeze(-1), history)
    return scores, history, lengths.gather(1, parents) + grows, shut, node, failed | bad


@register("beam_follow", allocate=_allocate, cpu=_oracle)
def _launch(
    best_scores: Tensor, parents: Tensor, columns: Tensor, bad: Tensor, tokens: Tensor, lengths: Tensor,
    closed: Tensor | None, nodes: Tensor | None, failed: Tensor, widths: Tensor, offsets: Tensor | None,
    edge_tokens: Tensor | None, children: Tensor | None, end_tokens: Tensor | None, first_token: int,
    step: int,
) -> _Out:  # fmt: skip
    out = _allocate(
        best_scores, parents, columns, bad, tokens, lengths, closed, nodes, failed, widths, offsets,
        edge_tokens, children, end_tokens, first_token, step,
    )  # fmt: skip
    requests, width = parents.shape
    # What is not there is not read: any tensor stands for it.
    shut = failed if closed is None else closed
    node, offset, token, child, ends = (
        lengths if x is None else x for x in (nodes, offsets, edge_tokens, children, end_tokens)
    )
    wrap_triton(_beam_follow)[(requests, cdiv(width, _BLOCK))](
        best_scores, parents, columns, bad, tokens, lengths, shut, node, failed, widths, offset, token, child,
        ends, *out, width, lengths.shape[1], token.shape[0], first_token, step,
        LENGTH=tokens.shape[2], ENDS=0 if end_tokens is None else end_tokens.shape[0],
        FINISH=closed is not None, LEGAL=nodes is not None, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def beam_follow(
    best: Continuations, before: Beams, widths: Tensor, *, edges: tuple[Tensor, Tensor, Tensor] | None,
    end_tokens: Tensor | None, first_token: int, step: int,
) -> tuple[Tensor, Beams]:  # fmt: skip
    """Scores float32[S, width] and the new beams, `width` of each request.

    widths int64[S]: ranks from there on are dead. edges: offsets, tokens and children of LegalTensors, where
    beams have nodes. end_tokens int64[E]: those that finish a beam; None where none is ever closed.
    """
    closed = None if end_tokens is None else before.closed
    nodes = None if edges is None else before.nodes
    given = (before.tokens, before.lengths, closed, nodes, before.failed, widths)
    state = (x if x is None else x.contiguous() for x in given)
    scores, tokens, lengths, shut, node, failed = _launch(
        best.scores, best.parents, best.columns, best.failed, *state, *(edges or (None, None, None)),
        end_tokens, first_token, step,
    )  # fmt: skip
    new_closed = None if closed is None else shut
    return scores, Beams(tokens, lengths, new_closed, None if nodes is None else node, failed)
