"""boundgen::beam_rescore: the best continuations by an 8-bit head, scored again by the exact one.

    x[p]        = hidden[s, b] · head[v]         p = (b, v) of the pool; float32 sums; x8[p]: of 8 bits
    norm'[s, b] = norm + log(1 + sum over b's p of (e^(x[p] - norm) - e^(x8[p] - norm)))
    score[p]    = (x[p] - norm') + scores[s, b]
    answer[s]   = the first `count` of (score down, b up, v up)

A pool is what beam_select found: more pairs than are wanted, best first. Its tokens are most of what a norm
is made of, so their errors are taken out of it too: else a likely token's error, which its 8-bit norm
shares, would come back into its score. The errors of all others average out in the norm.

A closed beam keeps its score, a dead pair stays dead, an exact logit that is not finite fails its request.
Three small launches, each sum in an order of its own that nothing else of the batch changes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.beam.selection import CHUNK, Exact, best_first
from engine.ops.portable.beam_rescore_kernels import corrected_keys, exact_logits, rescored
from engine.ops.portable.beam_select import Answer, Continuations
from engine.ops.portable.language import cdiv, next_power_of_2, register

_AT_ONCE = 4096  # values of rows of the head that a program holds
_NEVER = float("-inf")
_MOST_TERM = 80.0  # e^80 of thousands still is a float32
_FAILED = -(1 << 63)  # of a logit that is not finite: less than any key


def _allocate(
    hidden: Tensor, head: Tensor, best: Tensor, parents: Tensor, columns: Tensor, norms: Tensor,
    failed: Tensor, scores: Tensor, widths: Tensor, closed: Tensor | None, nodes: Tensor | None,
    offsets: Tensor | None, tokens: Tensor | None, span: int, first_token: int, factor: int, least: int,
    few: int, count: int,
) -> Answer:  # fmt: skip
    shape = (best.shape[0], count)
    return (
        best.new_empty(shape),
        parents.new_empty(shape),
        columns.new_empty(shape),
        torch.empty_like(norms),
        torch.empty_like(failed),
    )


def _oracle(
    hidden: Tensor, head: Tensor, best: Tensor, parents: Tensor, columns: Tensor, norms: Tensor,
    failed: Tensor, scores: Tensor, widths: Tensor, closed: Tensor | None, nodes: Tensor | None,
    offsets: Tensor | None, tokens: Tensor | None, span: int, first_token: int, factor: int, least: int,
    few: int, count: int,
) -> Answer:  # fmt: skip
    place = torch.arange(best.shape[1], device=best.device)
    chunks = widths.clamp_max(hidden.shape[1]) * cdiv(span, CHUNK)
    bound = torch.minimum(factor * widths + least, torch.maximum(widths, chunks).clamp_min(few))
    live = (best != _NEVER) & (place < bound.unsqueeze(1))
    kept = torch.zeros_like(live) if closed is None else live & closed.gather(1, parents)
    row = columns
    if nodes is not None and offsets is not None and tokens is not None:
        edge = offsets[nodes.gather(1, parents)].long() + columns
        row = tokens[edge.clamp_max(len(tokens) - 1)].long() - first_token
    grows = live & ~kept
    x = torch.where(grows, _products(hidden, head, parents, torch.where(grows, row, 0)), 0.0)
    counts = live & x.isfinite()
    norm, before = norms.gather(1, parents), scores.gather(1, parents)
    added, gone = (
        torch.zeros_like(norms).scatter_add(1, parents, torch.where(counts, term.exp(), 0.0))
        for term in ((x - norm).clamp_max(_MOST_TERM), best - before)
    )
    corrected = norms + _log_total(added, gone)
    score = torch.where(kept, before, (x - corrected.gather(1, parents)) + before)
    score = torch.where(counts & (score > _NEVER), score, _NEVER)
    top = best_first(score, count, parents * span + columns)
    return top.scores, top.index // span, top.index % span, corrected, failed | (live & ~counts).any(1)


def _log_total(added: Tensor, gone: Tensor) -> Tensor:
    """What is left of a distribution without the pool's 8-bit terms, with exact ones in their place."""
    return torch.log(((1.0 - gone).clamp_min(0.0) + added).clamp_min(1e-30))


def _products(hidden: Tensor, head: Tensor, parents: Tensor, row: Tensor) -> Tensor:
    """float32[S, P], a request at a time."""
    found = [
        (some[beam].float() * head[token].float()).sum(-1)
        for some, beam, token in zip(hidden, parents, row, strict=True)
    ]
    return torch.stack(found)


@register("beam_rescore", allocate=_allocate, cpu=_oracle)
def _launch(
    hidden: Tensor, head: Tensor, best: Tensor, parents: Tensor, columns: Tensor, norms: Tensor,
    failed: Tensor, scores: Tensor, widths: Tensor, closed: Tensor | None, nodes: Tensor | None,
    offsets: Tensor | None, tokens: Tensor | None, span: int, first_token: int, factor: int, least: int,
    few: int, count: int,
) -> Answer:  # fmt: skip
    out = _allocate(
        hidden, head, best, parents, columns, norms, failed, scores, widths, closed, nodes, offsets, tokens,
        span, first_token, factor, least, few, count,
    )  # fmt: skip
    requests, pool = best.shape
    beams, size = hidden.shape[1:]
    # What is not there is not read: any tensor stands for it.
    shut = failed if closed is None else closed
    node, offset, token = (parents if x is None else x for x in (nodes, offsets, tokens))
    flags = {"CLOSED": closed is not None, "LEGAL": nodes is not None}
    block = min(_AT_ONCE, next_power_of_2(size))
    each = _AT_ONCE // block
    exact, keys = torch.empty_like(best), torch.empty_like(parents)
    wrap_triton(exact_logits)[(requests, cdiv(pool, each))](
        hidden, head, best, parents, columns, widths, shut, node, offset, token, exact,
        pool, beams, first_token, factor, least, few, cdiv(span, CHUNK),
        SIZE=size, EACH=each, BLOCK=block, **flags, num_warps=4,
    )  # fmt: skip
    wrap_triton(corrected_keys)[(requests, cdiv(beams, 16))](
        exact, best, parents, columns, norms, scores, shut, out[3], keys, pool, beams, span,
        MINE=16, BLOCK=256, MOST_TERM=_MOST_TERM, CLOSED=closed is not None, FAILED=_FAILED,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    wrap_triton(rescored)[(requests, cdiv(pool, 64))](
        keys, parents, columns, failed, out[0], out[1], out[2], out[4], pool, count,
        MINE=64, OTHERS=64, FAILED=_FAILED, num_warps=4,
    )  # fmt: skip
    return out


def beam_rescore(
    found: Continuations, exact: Exact, scores: Tensor, widths: Tensor, count: int, *,
    closed: Tensor | None = None, legal: tuple[Tensor, Tensor, Tensor] | None = None, max_degree: int = 0,
    first_token: int = 0,
) -> Continuations:  # fmt: skip
    """found: by beam_select with the same scores, closed, legal, max_degree and first_token, at least `count`
    of a request. widths int64[S]: what each request wants; only the pool of its own width competes, so that
    what others of the batch ask for does not show. `exact.rows` begin with the token `first_token`.
    """
    nodes, offsets, tokens = legal or (None, None, None)
    state = (x if x is None else x.contiguous() for x in (scores, widths, closed, nodes))
    span = max(max_degree, 1) if legal else len(exact.rows)
    pool = exact.pool
    best = _launch(
        exact.hidden.contiguous(), exact.rows, found.scores, found.parents, found.columns, found.norms,
        found.failed, *state, offsets, tokens, span, first_token, pool.factor, pool.least, pool.few, count,
    )  # fmt: skip
    return Continuations(*best)
