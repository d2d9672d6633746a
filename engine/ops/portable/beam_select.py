"""boundgen::beam_select: the best `count` continuations of each request's beams, exactly, on the device.

    score(s, b, v) = (x[s, b, v] - log sum_u e^x[s, b, u]) + scores[s, b]
    answer[s]      = the first `count` of (score down, b up, v up)

engine/beam/selection.py is the oracle and has the argument: the best `count` candidates lie in the `count`
chunks whose (maximum, position) come first. Logits are read once, then only those chunks. Given the norms,
all bits are those of the oracle; a norm may differ in its last bit, as its sum has another order.

Seven small launches of static shapes that find every size in memory, so they can be captured. With legal
sequences, one more: columns are the edges of a beam's node then; norms are still over all logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.library import wrap_triton

from engine.beam.legal import find_edges, legal_logits
from engine.beam.selection import Rows, select
from engine.ops.portable.beam_candidates import candidates, ranks
from engine.ops.portable.beam_chunks import CHUNK, TILE, chunk_maxima, edge_maxima
from engine.ops.portable.beam_floors import chosen_floor, hot_chunks, request_floor, row_scores
from engine.ops.portable.language import cdiv, next_power_of_2, register

_NEVER = -0x7F800001  # -inf, ordered
_GROUPED = 16384  # maxima of groups that one program bisects
_HELD = 4096  # keys of hot chunks that one program keeps in registers
_CACHED = 1 << 18  # logits, 1 MB, that a CPU's core keeps at hand
_READERS = 64  # programs a request that read chosen chunks
Answer = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Continuations:
    """[S, count] each, best first, -inf where there were no more; and of every beam and request:"""

    scores: Tensor  # float32
    parents: Tensor  # int64, the beam within the request
    columns: Tensor  # int64
    norms: Tensor  # float32[S, B], not finite where a logit is not
    failed: Tensor  # bool[S], an open beam's norm is not finite


def _allocate(
    logits: Tensor, scales: Tensor | None, scores: Tensor, closed: Tensor | None, nodes: Tensor | None,
    offsets: Tensor | None, tokens: Tensor | None, max_degree: int, first_token: int, count: int,
) -> Answer:  # fmt: skip
    requests = logits.shape[0]
    return (
        scores.new_empty((requests, count)),
        torch.empty((requests, count), dtype=torch.int64, device=logits.device),
        torch.empty((requests, count), dtype=torch.int64, device=logits.device),
        torch.empty_like(scores),
        torch.empty((requests,), dtype=torch.bool, device=logits.device),
    )


def _oracle(
    logits: Tensor, scales: Tensor | None, scores: Tensor, closed: Tensor | None, nodes: Tensor | None,
    offsets: Tensor | None, tokens: Tensor | None, max_degree: int, first_token: int, count: int,
) -> Answer:  # fmt: skip
    x = logits.float()
    x = x if scales is None else x * scales.unsqueeze(-1)
    norms = _norms(x)
    is_open = scores != float("-inf")
    is_open = is_open if closed is None else is_open & ~closed
    finite = norms.isfinite() & x.amin(-1).isfinite()  # a norm alone does not show -inf
    failed = (is_open & ~finite).any(-1)
    if nodes is not None and offsets is not None and tokens is not None:
        x = legal_logits(x, tokens, find_edges(offsets, nodes, max_degree), first_token)
    best = select(x, Rows(norms, scores, closed), count)
    return best.scores, best.parents, best.columns, norms, failed


def _norms(x: Tensor) -> Tensor:
    """logsumexp of the last dimension, so few rows at a time that what they become stays in the cache."""
    rows = x.flatten(0, -2).split(max(1, _CACHED // x.shape[-1]))
    return torch.cat([some.logsumexp(-1) for some in rows]).view(x.shape[:-1])


@register("beam_select", allocate=_allocate, cpu=_oracle)
def _launch(
    logits: Tensor, scales: Tensor | None, scores: Tensor, closed: Tensor | None, nodes: Tensor | None,
    offsets: Tensor | None, tokens: Tensor | None, max_degree: int, first_token: int, count: int,
) -> Answer:  # fmt: skip
    args = (logits, scales, scores, closed, nodes, offsets, tokens, max_degree, first_token, count)
    out_scores, out_parents, out_columns, norms, failed = _allocate(*args)
    requests, beams, columns = logits.shape
    rows, row_stride, tiles = requests * beams, logits.stride(1), cdiv(columns, TILE * CHUNK)
    legal = nodes is not None
    # What is not there is not read: any tensor stands for it.
    scale, shut = logits if scales is None else scales, scores if closed is None else closed
    node, offset, token = (scores if x is None else x for x in (nodes, offsets, tokens))
    num_chunks = cdiv(max_degree if legal else columns, CHUNK)
    padded_beams = next_power_of_2(beams)
    padded = max(2, next_power_of_2(num_chunks))
    groups = min(padded, 512, max(1, _GROUPED // padded_beams))
    limit = count + count // 8  # chunks; more than `count`, so that bisection may end early
    room, capacity = limit * CHUNK, beams * num_chunks

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    maxima, peaks, sums = new(rows, padded), new(rows, tiles), new(rows, tiles)
    grouped, floors = new(rows, groups, dtype=torch.int32), new(requests, dtype=torch.int32)
    counters, chosen = new(requests, 2, dtype=torch.int32), new(requests, dtype=torch.int64)
    hot, found = new(requests, capacity, dtype=torch.int64), new(requests, room, dtype=torch.int64)
    flags = {"CLOSED": closed is not None, "LEGAL": legal}
    wrap_triton(chunk_maxima)[(rows, tiles)](
        logits, scale, maxima, peaks, sums, columns, row_stride, tiles, padded,
        CHUNK=CHUNK, TILE=TILE, SCALED=scales is not None, KEEP=not legal, num_warps=4,
    )  # fmt: skip
    if legal:
        wrap_triton(edge_maxima)[(rows, cdiv(num_chunks, TILE))](
            logits, scale, scores, node, offset, token, maxima, columns, row_stride, first_token, padded,
            CHUNK=CHUNK, TILE=TILE, SCALED=scales is not None, num_warps=4,
        )  # fmt: skip
    wrap_triton(row_scores)[(rows,)](
        maxima, peaks, sums, scores, shut, node, offset, norms, grouped, num_chunks, tiles,
        CHUNK=CHUNK, CHUNKS=padded, TILES=next_power_of_2(tiles), GROUPS=groups, **flags,
        num_warps=4 if padded > 512 else 1,
    )  # fmt: skip
    wrap_triton(request_floor)[(requests,)](
        grouped, norms, scores, shut, floors, counters, failed, beams, count, limit,
        GROUPS=groups, BEAMS=padded_beams, CLOSED=closed is not None, NEVER=_NEVER,
        num_warps=16 if groups * padded_beams > 2048 else 4,
    )  # fmt: skip
    wrap_triton(hot_chunks)[(rows,)](
        maxima, floors, counters, hot, beams, num_chunks, CHUNKS=padded, num_warps=4 if padded > 512 else 1
    )
    wrap_triton(chosen_floor)[(requests,)](
        hot, counters, chosen, out_scores, out_parents, out_columns, capacity, count, limit,
        HELD=min(_HELD, next_power_of_2(capacity)), COUNT=next_power_of_2(count), num_warps=16,
    )  # fmt: skip
    wrap_triton(candidates)[(requests, _READERS)](
        logits, scale, norms, scores, shut, node, offset, token, hot, counters, chosen, found,
        columns, row_stride, first_token, beams, capacity, room,
        CHUNK=CHUNK, CHUNKS=padded, EACH=8, PROGRAMS=_READERS, SCALED=scales is not None, **flags,
        NEVER=_NEVER, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    wrap_triton(ranks)[(requests, cdiv(room, 64))](
        found, counters, out_scores, out_parents, out_columns, count, room,
        SPAN=padded * CHUNK, MINE=64, OTHERS=64, num_warps=4,
    )  # fmt: skip
    return out_scores, out_parents, out_columns, norms, failed


def beam_select(
    logits: Tensor, scores: Tensor, count: int, *, scales: Tensor | None = None, closed: Tensor | None = None,
    legal: tuple[Tensor, Tensor, Tensor] | None = None, max_degree: int = 0, first_token: int = 0,
) -> Continuations:  # fmt: skip
    """logits[S, B, C], rows of any stride, times scales float32[S, B] where given; scores float32[S, B], -inf
    for a dead beam; closed bool[S, B], each with one continuation, column 0, which keeps its score.

    legal: nodes int64[S, B], offsets and tokens as in LegalTensors; no node has more than `max_degree` edges,
    and the token of logits[..., 0] is `first_token`. ValueError for more than 2^31 positions a request.
    """
    nodes, offsets, tokens = legal or (None, None, None)
    degree = max(max_degree, 1)
    width = degree if legal else logits.shape[2]
    span = next_power_of_2(cdiv(width, CHUNK)) * CHUNK
    if max(span, 2 * CHUNK) * next_power_of_2(logits.shape[1]) > 1 << 31:
        raise ValueError(f"logits.shape = {tuple(logits.shape)!r}: over 2^31 positions a request")
    if logits.stride(2) != 1 or logits.stride(0) != logits.shape[1] * logits.stride(1):
        logits = logits.contiguous()
    state = (x if x is None else x.contiguous() for x in (scales, scores, closed, nodes))
    given = (logits, *state, offsets, tokens, degree, first_token, count)
    return Continuations(*_launch(*given))
