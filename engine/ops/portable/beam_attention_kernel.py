"""The kernel of a decode step's attention; beam_attention.py says what it computes and how its work is cut.

It may also do what comes before: rotate queries and new keys, and keep these and the new values in the
suffix. A program has all query heads of a key head, so that nothing is written twice.

What bounds it is waiting: a program is a chain of loads that need one another. So nothing goes through memory
to be read again, older keys are asked for before the new ones are rotated, and the softmax begins with the
newest key: a row has exactly one, the diagonal of a product with those of all beams.
"""

from engine.ops.portable.language import jit, tl
from engine.ops.portable.rotary import rotate_heads


@jit
def _attend(
    first, second, first_keys, second_keys, values, visible, extra, FACTOR: tl.constexpr,
    highest, total, weighted,
):  # fmt: skip
    """One tile of the softmax: halves of queries[ROWS, D/2] and of keys[D/2, N], values[N, D], `extra` added
    to the N scores.

    No second mask: every row that counts has seen a key, and 2^(-1e30 - max) is zero.
    """
    scores = tl.dot(first, first_keys, input_precision="ieee")
    scores = tl.dot(second, second_keys, scores, input_precision="ieee") * FACTOR + extra[None, :]
    scores = tl.where(visible, scores, -1e30)
    peak = tl.maximum(highest, tl.max(scores, 1))
    weight = tl.exp2(scores - peak[:, None])
    shrink = tl.exp2(highest - peak)
    total = total * shrink + tl.sum(weight, 1)
    weighted = tl.dot(weight.to(values.dtype), values, weighted * shrink[:, None], input_precision="ieee")
    return peak, total, weighted


@jit
def _ask(
    tile, ancestors, suffix_k, suffix_v, first_row, num_beams, num_rows,
    suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
    DIM: tl.constexpr, LANES: tl.constexpr, TILE_BEAMS: tl.constexpr, SLOTS: tl.constexpr,
    ALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Older keys of a tile's beams, those of slots tile * SLOTS and on: halves[LANES, N], values[N, DIM], and
    which of the N are there."""
    own = tl.arange(0, TILE_BEAMS * SLOTS)
    slot = (tile * SLOTS + own % SLOTS).to(tl.int64)
    beam = own // SLOTS
    asked = (slot < ALL_SLOTS) & (beam < num_beams)
    source = tl.load(ancestors + slot * num_rows + first_row + beam, mask=asked, other=-1)
    there = source >= 0
    lane = tl.arange(0, LANES)[:, None]
    key_at = tl.multiple_of(suffix_k + slot * suffix_k_slot + source * suffix_k_stride, 16)[None, :] + lane
    value_at = tl.multiple_of(suffix_v + slot * suffix_v_slot + source * suffix_v_stride, 16)[:, None]
    wanted = there[None, :] & (lane < DIM // 2)
    first = tl.load(key_at, mask=wanted, other=0.0)
    second = tl.load(key_at + DIM // 2, mask=wanted, other=0.0)
    values = tl.load(value_at + tl.arange(0, DIM)[None, :], mask=there[:, None], other=0.0)
    return first, second, values, there


@jit
def _begin(
    q_at, k_at, new_k_at, wanted, is_beam, lane, position, num_positions, cos, sin, q_weight,
    k_weight,
    FACTOR: tl.constexpr, DIM: tl.constexpr, TILE_BEAMS: tl.constexpr, PADDED: tl.constexpr,
    KEEP: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Halves of a tile's queries, and their scores with the newest key of each row's beam."""
    half: tl.constexpr = DIM // 2
    rows = wanted & (lane < half)
    inside = is_beam & (lane < half)
    element: tl.constexpr = q_at.dtype.element_ty
    if KEEP:
        at = lane % half
        first_key, second_key = rotate_heads(
            k_at, at, inside, is_beam, position, cos, sin, k_weight, k_weight, num_positions, half, EPS, 1.0,
            NORM,
        )  # fmt: skip
        first_key, second_key = first_key.to(element), second_key.to(element)
        tl.store(new_k_at, first_key, mask=inside)
        tl.store(new_k_at + half, second_key, mask=inside)
        first, second = rotate_heads(
            q_at, at, rows, wanted, position, cos, sin, q_weight, q_weight, num_positions, half, EPS, 1.0,
            NORM,
        )  # fmt: skip
        first, second = first.to(element), second.to(element)
    else:
        first_key = tl.load(k_at, mask=inside, other=0.0)
        second_key = tl.load(k_at + half, mask=inside, other=0.0)
        first = tl.load(q_at, mask=rows, other=0.0)
        second = tl.load(q_at + half, mask=rows, other=0.0)
    scores = tl.dot(first, tl.trans(first_key), input_precision="ieee")
    scores = tl.dot(second, tl.trans(second_key), scores, input_precision="ieee")
    is_own = (tl.arange(0, TILE_BEAMS * PADDED) // PADDED)[:, None] == tl.arange(0, TILE_BEAMS)[None, :]
    return first, second, tl.sum(tl.where(is_own, scores, 0.0), 1) * FACTOR


@jit
def _attend_to_own(
    asked, first, second, highest, total, weighted,
    FACTOR: tl.constexpr, PADDED: tl.constexpr, TILE_BEAMS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """A tile of older keys, SLOTS of each beam side by side, each seen by the rows of its own beam."""
    first_keys, second_keys, values, there = asked
    # Zero times another beam's NaN would be NaN: what is not finite goes to its own beam's scores instead.
    zeros = values.to(tl.float32) * 0.0
    values = tl.where(zeros == 0.0, values, 0.0)
    row_beam = tl.arange(0, TILE_BEAMS * PADDED) // PADDED
    is_mine = row_beam[:, None] == (tl.arange(0, TILE_BEAMS * SLOTS) // SLOTS)[None, :]
    return _attend(
        first, second, first_keys, second_keys, values, is_mine & there[None, :], tl.sum(zeros, 1), FACTOR,
        highest, total, weighted,
    )  # fmt: skip


@jit
def _attend_to_prompt(
    keys, values, keys_stride, values_stride, length, first, second, highest, total, weighted,
    FACTOR: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """`keys` and `values` point to a prompt's first token, of one head."""
    key = tl.arange(0, KEYS)
    lane = tl.arange(0, LANES)[:, None]
    nothing = tl.zeros([KEYS], tl.float32)
    key_at = keys + key.to(tl.int64)[None, :] * keys_stride + lane
    value_at = values + key.to(tl.int64)[:, None] * values_stride + tl.arange(0, DIM)[None, :]
    for at in tl.range(0, length, KEYS):
        there = at + key < length
        wanted = there[None, :] & (lane < DIM // 2)
        first_keys = tl.load(key_at + at * keys_stride, mask=wanted, other=0.0)
        second_keys = tl.load(key_at + DIM // 2 + at * keys_stride, mask=wanted, other=0.0)
        some = tl.load(value_at + at * values_stride, mask=there[:, None], other=0.0)
        highest, total, weighted = _attend(
            first, second, first_keys, second_keys, some, there[None, :], nothing, FACTOR, highest, total,
            weighted,
        )  # fmt: skip
    return highest, total, weighted


@jit
def _tiles_in_use(
    ancestors, first_row, num_beams, num_rows,
    TILE_BEAMS: tl.constexpr, SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr, ALL_PADDED: tl.constexpr,
):  # fmt: skip
    """How many tiles of older keys any beam has, where there may be more than one."""
    slot = tl.arange(0, ALL_PADDED)[:, None]
    beam = tl.arange(0, TILE_BEAMS)[None, :]
    known = tl.load(
        ancestors + slot.to(tl.int64) * num_rows + first_row + beam,
        mask=(slot < ALL_SLOTS) & (beam < num_beams), other=-1,
    )  # fmt: skip
    return tl.cdiv(tl.max(tl.max(tl.where(known >= 0, slot + 1, 0), 1), 0), SLOTS)


@jit
def beam_attention_kernel(
    q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens, out, beams, num_rows,
    positions, cos, sin, q_weight, k_weight, slot, num_positions,
    q_stride, k_stride, v_stride, prompt_k_stride, prompt_v_stride,
    suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
    FACTOR: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    LANES: tl.constexpr, TILE_BEAMS: tl.constexpr, SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr,
    ALL_PADDED: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr, NORM: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Grid (kv heads, tiles of beams, prompts). Strides are of rows; a row's heads lie together. KEEP:
    queries and new keys come as the projection left them, and every beam of a prompt has one position.
    LANES: half of DIM, and enough for a tensor core."""
    kv_head = tl.program_id(0)
    first_beam = tl.program_id(1) * TILE_BEAMS
    prompt = tl.program_id(2)
    num_beams = beams - first_beam  # of this tile, or more
    first_row = (prompt * beams + first_beam).to(tl.int64)
    start = tl.load(cu_seqlens + prompt).to(tl.int64)
    length = tl.load(cu_seqlens + prompt + 1) - start
    head = kv_head * DIM
    asked = _ask(
        0, ancestors, suffix_k + head, suffix_v + head, first_row, num_beams, num_rows,
        suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
        DIM, LANES, TILE_BEAMS, SLOTS, ALL_SLOTS,
    )  # fmt: skip
    if ALL_SLOTS > SLOTS:
        tiles = _tiles_in_use(
            ancestors, first_row, num_beams, num_rows, TILE_BEAMS, SLOTS, ALL_SLOTS, ALL_PADDED
        )
    beam = tl.arange(0, TILE_BEAMS * PADDED) // PADDED
    member = (tl.arange(0, TILE_BEAMS * PADDED) % PADDED)[:, None]
    wanted = (beam < num_beams)[:, None] & (member < GROUP)
    row = (first_row + beam)[:, None]
    each = tl.arange(0, TILE_BEAMS)[:, None]
    is_beam = each < num_beams
    lane = tl.arange(0, LANES)[None, :]
    dim = tl.arange(0, DIM)[None, :]
    query_head = (kv_head * GROUP + member) * DIM
    new_k, position = suffix_k, 0
    if KEEP:
        new = tl.load(slot).to(tl.int64)
        position = tl.load(positions + first_row)
        new_k = suffix_k + new * suffix_k_slot
        kept = tl.load(v + (first_row + each) * v_stride + head + dim, mask=is_beam, other=0.0)
        new_v = suffix_v + new * suffix_v_slot + (first_row + each) * suffix_v_stride
        tl.store(new_v + head + dim, kept, mask=is_beam)
    first, second, newest = _begin(
        q + row * q_stride + query_head + lane, k + (first_row + each) * k_stride + head + lane,
        new_k + (first_row + each) * suffix_k_stride + head + lane,
        wanted, is_beam, lane, position, num_positions, cos, sin, q_weight, k_weight,
        FACTOR, DIM, TILE_BEAMS, PADDED, KEEP, NORM, EPS,
    )  # fmt: skip
    highest = newest
    total = tl.full([TILE_BEAMS * PADDED], 1.0, tl.float32)
    weighted = tl.zeros([TILE_BEAMS * PADDED, DIM], tl.float32)
    highest, total, weighted = _attend_to_own(
        asked, first, second, highest, total, weighted, FACTOR, PADDED, TILE_BEAMS, SLOTS
    )
    if ALL_SLOTS > SLOTS:
        for tile in tl.range(1, tiles, num_stages=1):
            more = _ask(
                tile, ancestors, suffix_k + head, suffix_v + head, first_row, num_beams, num_rows,
                suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
                DIM, LANES, TILE_BEAMS, SLOTS, ALL_SLOTS,
            )  # fmt: skip
            highest, total, weighted = _attend_to_own(
                more, first, second, highest, total, weighted, FACTOR, PADDED, TILE_BEAMS, SLOTS
            )
    highest, total, weighted = _attend_to_prompt(
        prompt_k + start * prompt_k_stride + head, prompt_v + start * prompt_v_stride + head,
        prompt_k_stride, prompt_v_stride, length, first, second, highest, total, weighted,
        FACTOR, DIM, LANES, KEYS,
    )  # fmt: skip
    value = tl.load(v + row * v_stride + head + dim, mask=wanted, other=0.0).to(tl.float32)
    result = (weighted + value * tl.exp2(newest - highest)[:, None]) / total[:, None]
    tl.store(out + row * (HEADS * DIM) + query_head + dim, result.to(out.dtype.element_ty), mask=wanted)
