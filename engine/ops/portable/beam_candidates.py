"""Kernels of boundgen::beam_select that read the chosen chunks again and put their candidates in order.

    candidates      the keys of all candidates in chosen chunks that reach the floor's score
    ranks           rank = how many keys are greater; the first `count` are the answer

A key is the ordered score, then the earlier (beam, column) the greater: 64 bits, no two equal, so the order
in which programs ran does not show. At most `limit` chunks are chosen: limit * CHUNK candidates always fit.
"""

from engine.ops.portable.beam_floors import ordered
from engine.ops.portable.language import jit, tl


@jit
def candidates(
    logits, scales, norms, scores, closed, nodes, offsets, tokens, hot, counters, chosen, found,
    columns, row_stride, first_token, num_beams, capacity, room,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, EACH: tl.constexpr, PROGRAMS: tl.constexpr,
    SCALED: tl.constexpr, CLOSED: tl.constexpr, LEGAL: tl.constexpr, NEVER: tl.constexpr,
):  # fmt: skip
    """Grid (requests, PROGRAMS), EACH hot chunks a turn. Scores round as in row_scores: no fused
    multiply-add."""
    request = tl.program_id(0)
    number = tl.load(counters + 2 * request)
    floor = tl.load(chosen + request)
    least = tl.maximum((floor >> 32).to(tl.int32), NEVER + 1)
    for begin in tl.range(tl.program_id(1) * EACH, number, PROGRAMS * EACH):
        turn = begin + tl.arange(0, EACH)
        key = tl.load(hot + request.to(tl.int64) * capacity + turn, mask=turn < number, other=0)
        live = (turn < number) & (key >= floor)
        if tl.max(live.to(tl.int32), 0) > 0:
            place = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
            beam = tl.where(live, place // CHUNKS, 0)
            row = (request * num_beams + beam).to(tl.int64)
            column = (place % CHUNKS)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
            inside = live[:, None] & (column < columns)
            token = column
            if LEGAL:
                node = tl.load(nodes + row)
                start = tl.load(offsets + node)
                degree = tl.load(offsets + node + 1) - start
                there = live[:, None] & (column < degree[:, None])
                token = tl.load(tokens + start[:, None] + column, mask=there, other=-1) - first_token
                inside = there & (token >= 0) & (token < columns)
            x = tl.load(logits + row[:, None] * row_stride + token, mask=inside, other=float("-inf"))
            x = x.to(tl.float32)
            if SCALED:
                x = x * tl.load(scales + row)[:, None]
            before = tl.load(scores + row)[:, None]
            score = (x - tl.load(norms + row)[:, None]) + before
            if CLOSED:
                is_closed = (tl.load(closed + row) != 0)[:, None]
                kept = tl.where(live[:, None] & (column == 0), before, float("-inf"))
                score = tl.where(is_closed, kept, score)
            value = tl.reshape(ordered(score), [EACH * CHUNK])
            index = tl.reshape(beam[:, None] * (CHUNKS * CHUNK) + column, [EACH * CHUNK])
            reaches = value >= least
            each = reaches.to(tl.int32)
            at = tl.atomic_add(counters + 2 * request + 1, tl.sum(each, 0)) + tl.cumsum(each, 0) - 1
            low = (0x7FFFFFFF - index).to(tl.int64)
            tl.store(found + request.to(tl.int64) * room + at, (value.to(tl.int64) << 32) | low, mask=reaches)


@jit
def ranks(
    found, counters, out_scores, out_parents, out_columns, count, room,
    SPAN: tl.constexpr, MINE: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Grid (requests, room / MINE): programs past the candidates end at once. SPAN: positions of a beam."""
    request = tl.program_id(0)
    number = tl.load(counters + 2 * request + 1)
    first = tl.program_id(1) * MINE
    if first >= number:
        return
    keys = found + request.to(tl.int64) * room
    least = -0x7FFFFFFFFFFFFFFF
    place = first + tl.arange(0, MINE)
    mine = tl.load(keys + place, mask=place < number, other=least)
    rank = tl.zeros([MINE], tl.int32)
    for begin in tl.range(0, number, OTHERS):
        other = begin + tl.arange(0, OTHERS)
        theirs = tl.load(keys + other, mask=other < number, other=least)
        rank += tl.sum((theirs[None, :] > mine[:, None]).to(tl.int32), 1)
    wanted = (place < number) & (rank < count)
    index = 0x7FFFFFFF - (mine & 0x7FFFFFFF).to(tl.int32)
    bits = (mine >> 32).to(tl.int32)
    score = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    at = request * count + rank
    tl.store(out_scores + at, score, mask=wanted)
    tl.store(out_parents + at, (index // SPAN).to(tl.int64), mask=wanted)
    tl.store(out_columns + at, (index % SPAN).to(tl.int64), mask=wanted)
