"""Kernels of boundgen::beam_select that find which chunks can hold the answer, without looking at logits.

Scores are ordered integers here (`ordered`), so that bisection is exact. A floor is a value that at least
`count` of something reach, and at most `count` plus an eighth where ties allow it: bisection ends early.

    row_scores      norms; maxima become scores; their maxima by groups of chunks
    request_floor   a first floor, that at least `count` groups of a request reach, so as many chunks do
    hot_chunks      the keys of all chunks that reach it
    chosen_floor    among those the floor of the best `count`, exact to (score, position): keys differ

The list of hot chunks has room for all of them. It is short but where very many maxima tie, which costs time
and nothing else.
"""

from engine.ops.portable.language import jit, tl


@jit
def ordered(x):
    """float32 -> int32 in the same order; both zeros are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def row_scores(
    maxima, peaks, sums, scores, closed, nodes, offsets, norms, groups, num_chunks, tiles,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr,
    CLOSED: tl.constexpr, LEGAL: tl.constexpr,
):  # fmt: skip
    """One row a program. CHUNKS, TILES: powers of two; group g holds the chunks that are g modulo GROUPS."""
    row = tl.program_id(0).to(tl.int64)
    never = float("-inf")
    tile = tl.arange(0, TILES)
    peak = tl.load(peaks + row * tiles + tile, mask=tile < tiles, other=never)
    total = tl.load(sums + row * tiles + tile, mask=tile < tiles, other=0.0)
    base = tl.max(peak, 0)
    norm = base + tl.log(tl.sum(total * tl.exp2((peak - base) * 1.4426950408889634), 0))
    tl.store(norms + row, norm)
    score = tl.load(scores + row)
    chunk = tl.arange(0, CHUNKS)
    used = num_chunks
    if LEGAL:
        node = tl.load(nodes + row)
        edges = tl.load(offsets + node + 1) - tl.load(offsets + node)
        used = tl.minimum((edges + CHUNK - 1) // CHUNK, num_chunks)
    best = tl.load(maxima + row * CHUNKS + chunk, mask=chunk < used, other=never)
    adjusted = (best - norm) + score
    if CLOSED:
        adjusted = tl.where(tl.load(closed + row) != 0, tl.where(chunk == 0, score, never), adjusted)
    # A dead beam has no continuations, whatever its logits; NaN is no candidate, and marks its request below.
    adjusted = tl.where(score == never, never, adjusted)
    adjusted = tl.where(adjusted > never, adjusted, never)
    tl.store(maxima + row * CHUNKS + chunk, adjusted, mask=chunk < num_chunks)
    grouped = tl.max(tl.reshape(ordered(adjusted), [CHUNKS // GROUPS, GROUPS]), 0)
    tl.store(groups + row * GROUPS + tl.arange(0, GROUPS), grouped)


@jit
def request_floor(
    groups, norms, scores, closed, floors, counters, failed, num_beams, count, limit,
    GROUPS: tl.constexpr, BEAMS: tl.constexpr, CLOSED: tl.constexpr, NEVER: tl.constexpr,
):  # fmt: skip
    """One request a program; NEVER is -inf, ordered. Clears the request's counters, and says whether an open
    beam's norm is not finite."""
    request = tl.program_id(0)
    place = tl.arange(0, BEAMS * GROUPS)
    first = groups + request.to(tl.int64) * num_beams * GROUPS
    key = tl.load(first + place, mask=place < num_beams * GROUPS, other=NEVER)
    there = key > NEVER
    reached = tl.sum(there.to(tl.int32), 0)
    enough = reached >= count
    low = tl.min(tl.where(there, key, 0x7FFFFFFF), 0)
    high = tl.max(key, 0)
    while enough & (reached > limit) & (low < high):
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up
        above = tl.sum((key >= middle).to(tl.int32), 0)
        up = above >= count
        low = tl.where(up, middle, low)
        high = tl.where(up, high, middle - 1)
        reached = tl.where(up, above, reached)
    tl.store(floors + request, tl.where(enough, low, NEVER + 1))
    tl.store(counters + 2 * request, 0)
    tl.store(counters + 2 * request + 1, 0)
    beam = tl.arange(0, BEAMS)
    row = request * num_beams + beam
    norm = tl.load(norms + row, mask=beam < num_beams, other=0.0)
    score = tl.load(scores + row, mask=beam < num_beams, other=0.0)
    bad = (score != float("-inf")) & ((tl.abs(norm) < float("inf")) == 0)
    if CLOSED:
        bad = bad & (tl.load(closed + row, mask=beam < num_beams, other=1) == 0)
    tl.store(failed + request, tl.max(bad.to(tl.int32), 0) != 0)


@jit
def hot_chunks(
    maxima, floors, counters, hot, num_beams, num_chunks, CHUNKS: tl.constexpr
):  # fmt: skip
    """One row a program. Key: ordered score, then the earlier (beam, chunk) the greater; in any order."""
    row = tl.program_id(0)
    request = row // num_beams
    beam = row - request * num_beams
    chunk = tl.arange(0, CHUNKS)
    score = tl.load(maxima + row.to(tl.int64) * CHUNKS + chunk, mask=chunk < num_chunks, other=float("-inf"))
    key = ordered(score)
    reaches = (key >= tl.load(floors + request)).to(tl.int32)
    found = tl.sum(reaches, 0)
    if found > 0:
        place = tl.atomic_add(counters + 2 * request, found) + tl.cumsum(reaches, 0) - 1
        at = hot + request.to(tl.int64) * num_beams * num_chunks + place
        low = (0x7FFFFFFF - (beam * CHUNKS + chunk)).to(tl.int64)
        tl.store(at, (key.to(tl.int64) << 32) | low, mask=reaches != 0)


@jit
def chosen_floor(
    hot, counters, chosen, out_scores, out_parents, out_columns, capacity, count, limit,
    HELD: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """One request a program: HELD keys in registers; a longer list is read again at every step. Fills the
    results with dead ones, for the ranks that nobody will take. COUNT: a power of two."""
    request = tl.program_id(0)
    keys = hot + request.to(tl.int64) * capacity
    number = tl.load(counters + 2 * request)
    place = tl.arange(0, HELD)
    greatest = 0x7FFFFFFFFFFFFFFF
    held = tl.load(keys + place, mask=place < number, other=-greatest)
    low = tl.min(tl.where(place < number, held, greatest), 0)
    high = tl.max(held, 0)
    for begin in tl.range(HELD, number, HELD):
        inside = begin + place < number
        low = tl.minimum(low, tl.min(tl.load(keys + begin + place, mask=inside, other=greatest), 0))
        high = tl.maximum(high, tl.max(tl.load(keys + begin + place, mask=inside, other=-greatest), 0))
    reached = number
    while (reached > limit) & (low < high):
        middle = (low | high) - ((low ^ high) >> 1)
        above = tl.sum((held >= middle).to(tl.int32), 0)
        for begin in tl.range(HELD, number, HELD):
            more = tl.load(keys + begin + place, mask=begin + place < number, other=-greatest)
            above += tl.sum((more >= middle).to(tl.int32), 0)
        up = above >= count
        low = tl.where(up, middle, low)
        high = tl.where(up, high, middle - 1)
        reached = tl.where(up, above, reached)
    # Where there are fewer chunks than results asked for, any candidate may be one.
    tl.store(chosen + request, tl.where(reached >= count, low, -greatest))
    rank = tl.arange(0, COUNT)
    at = request * count + rank
    nobody = tl.zeros([COUNT], tl.int64)
    tl.store(out_scores + at, nobody.to(tl.float32) + float("-inf"), mask=rank < count)
    tl.store(out_parents + at, nobody, mask=rank < count)
    tl.store(out_columns + at, nobody, mask=rank < count)
