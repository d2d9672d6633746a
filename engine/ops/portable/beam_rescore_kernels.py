"""Kernels of boundgen::beam_rescore.

    exact_logits     of each pair of the pool: -inf where it is dead, NaN where its product is not finite
    corrected_keys   of each beam: its norm with exact terms, then the keys of its pairs
    rescored         rank = how many pairs come first; the first `count` are the answer

A key is as in beam_candidates: the ordered score, then the earlier (beam, column) the greater.
"""

from engine.ops.portable.beam_floors import ordered
from engine.ops.portable.language import jit, tl


@jit
def exact_logits(
    hidden, head, best, parents, columns, widths, closed, nodes, offsets, tokens, exact,
    pool, num_beams, first_token, factor, least, few, chunks,
    SIZE: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr, CLOSED: tl.constexpr, LEGAL: tl.constexpr,
):  # fmt: skip
    """Grid (requests, pool / EACH). Rows of the head are read whole, by 128 threads at once: 328 of 896 are
    0.6 MB a request."""
    request = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * EACH + tl.arange(0, EACH)
    at = request * pool + place
    width = tl.load(widths + request)
    there = tl.maximum(tl.maximum(width, tl.minimum(width, num_beams) * chunks), few)
    bound = tl.minimum(tl.minimum(width * factor + least, there), pool)
    live = place < bound
    live = live & (tl.load(best + at, mask=live, other=float("-inf")) != float("-inf"))
    row = request * num_beams + tl.load(parents + at, mask=live, other=0)
    token = tl.load(columns + at, mask=live, other=0)
    grows = live
    if CLOSED:
        grows = live & (tl.load(closed + row, mask=live, other=0) == 0)
    if LEGAL:
        node = tl.load(nodes + row, mask=grows, other=0)
        edge = tl.load(offsets + node, mask=grows, other=0).to(tl.int64) + token
        token = tl.load(tokens + edge, mask=grows, other=0).to(tl.int64) - first_token
    total = tl.zeros([EACH], tl.float32)
    for begin in tl.static_range(0, SIZE, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        inside = grows[:, None] & (k < SIZE)[None, :]
        h = tl.load(hidden + row[:, None] * SIZE + k[None, :], mask=inside, other=0.0).to(tl.float32)
        w = tl.load(head + token[:, None] * SIZE + k[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(h * w, 1)
    total = tl.where(tl.abs(total) < float("inf"), total, float("nan"))
    tl.store(exact + at, tl.where(live, total, float("-inf")), mask=place < pool)


@jit
def corrected_keys(
    exact, best, parents, columns, norms, scores, closed, out_norms, keys, pool, num_beams, span,
    MINE: tl.constexpr, BLOCK: tl.constexpr, MOST_TERM: tl.constexpr, CLOSED: tl.constexpr,
    FAILED: tl.constexpr,
):  # fmt: skip
    """Grid (requests, beams / MINE): the norms of MINE beams, and the keys of all their pairs. Scores round
    as in row_scores: no fused multiply-add."""
    request = tl.program_id(0).to(tl.int64)
    beam = tl.program_id(1) * MINE + tl.arange(0, MINE)
    never = float("-inf")
    added = tl.zeros([MINE], tl.float32)
    gone = tl.zeros([MINE], tl.float32)
    for begin in tl.range(0, pool, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        at = request * pool + place
        x = tl.load(exact + at, mask=place < pool, other=never)
        counts = tl.abs(x) < float("inf")
        parent = tl.load(parents + at, mask=counts, other=0)
        row = request * num_beams + parent
        old = tl.load(best + at, mask=counts, other=0.0) - tl.load(scores + row, mask=counts, other=0.0)
        new = tl.minimum(x - tl.load(norms + row, mask=counts, other=0.0), MOST_TERM)
        mine = (parent[None, :] == beam[:, None]) & counts[None, :]
        added += tl.sum(tl.where(mine, tl.exp2(new * 1.4426950408889634)[None, :], 0.0), 1)
        gone += tl.sum(tl.where(mine, tl.exp2(old * 1.4426950408889634)[None, :], 0.0), 1)
    at_beam = request * num_beams + beam
    total = tl.maximum(tl.maximum(1.0 - gone, 0.0) + added, 1e-30)
    norm = tl.load(norms + at_beam, mask=beam < num_beams, other=0.0) + tl.log(total)
    tl.store(out_norms + at_beam, norm, mask=beam < num_beams)
    for begin in tl.range(0, pool, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        at = request * pool + place
        parent = tl.load(parents + at, mask=place < pool, other=-1)
        owns = parent[None, :] == beam[:, None]
        owned = tl.max(owns.to(tl.int32), 0) != 0
        x = tl.load(exact + at, mask=owned, other=never)
        before = tl.load(scores + request * num_beams + parent, mask=owned, other=0.0)
        score = (x - tl.sum(tl.where(owns, norm[:, None], 0.0), 0)) + before
        if CLOSED:
            shut = tl.load(closed + request * num_beams + parent, mask=owned, other=0)
            score = tl.where(shut != 0, before, score)
        finite = (x == never) | (tl.abs(x) < float("inf"))  # dead ones are
        score = tl.where((x > never) & (score > never), score, never)
        position = parent * span + tl.load(columns + at, mask=owned, other=0)
        key = (ordered(score).to(tl.int64) << 32) | (0x7FFFFFFF - position)
        tl.store(keys + at, tl.where(finite, key, FAILED), mask=owned)


@jit
def rescored(
    keys, parents, columns, failed, out_scores, out_parents, out_columns, out_failed, pool, count,
    MINE: tl.constexpr, OTHERS: tl.constexpr, FAILED: tl.constexpr,
):  # fmt: skip
    """Grid (requests, pool / MINE). Pairs that are dead may have equal keys: those go by their place."""
    request = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * MINE + tl.arange(0, MINE)
    at = request * pool + place
    mine = tl.load(keys + at, mask=place < pool, other=FAILED)
    rank = tl.zeros([MINE], tl.int32)
    bad = tl.zeros([OTHERS], tl.int32)
    for begin in tl.range(0, pool, OTHERS):
        other = begin + tl.arange(0, OTHERS)
        inside = other < pool
        theirs = tl.load(keys + request * pool + other, mask=inside, other=FAILED)
        first = (theirs[None, :] == mine[:, None]) & (other[None, :] < place[:, None])
        first = (first | (theirs[None, :] > mine[:, None])) & inside[None, :]
        rank += tl.sum(first.to(tl.int32), 1)
        bad = bad | (inside & (theirs == FAILED)).to(tl.int32)
    wanted = (place < pool) & (rank < count)
    bits = (mine >> 32).to(tl.int32)
    score = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    to = request * count + rank
    tl.store(out_scores + to, tl.where(mine == FAILED, float("-inf"), score), mask=wanted)
    tl.store(out_parents + to, tl.load(parents + at, mask=wanted, other=0), mask=wanted)
    tl.store(out_columns + to, tl.load(columns + at, mask=wanted, other=0), mask=wanted)
    if tl.program_id(1) == 0:
        tl.store(out_failed + request, (tl.load(failed + request) != 0) | (tl.max(bad, 0) != 0))
