"""The kernel of a decode step's attention; beam_attention.py says what it computes and how its work is cut.

It may also do what comes before: rotate queries and new keys, and keep these and the new values in the
suffix. A program has all query heads of a key head, so that nothing is rotated twice.
"""

from engine.ops.portable.language import jit, tl


@jit
def _attend(queries, keys, values, visible, extra, FACTOR: tl.constexpr, highest, total, weighted):
    """One tile of the softmax: keys[DIM, N], values[N, DIM], `extra` added to the N scores.

    No second mask: every row that counts has seen a key, and 2^(-1e30 - max) is zero.
    """
    scores = tl.dot(queries, keys, input_precision="ieee") * FACTOR + extra[None, :]
    scores = tl.where(visible, scores, -1e30)
    peak = tl.maximum(highest, tl.max(scores, 1))
    weight = tl.exp2(scores - peak[:, None])
    shrink = tl.exp2(highest - peak)
    total = total * shrink + tl.sum(weight, 1)
    weighted = tl.dot(weight.to(values.dtype), values, weighted * shrink[:, None], input_precision="ieee")
    return peak, total, weighted


@jit
def _rotate(
    heads, inside, weight, cos, sin, position,
    DIM: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """The heads that begin at `heads`[N, 1], float32[N, DIM], with an RMSNorm first where there is one."""
    dim = tl.arange(0, DIM)
    pair = tl.max_contiguous(tl.multiple_of((dim + DIM // 2) % DIM, DIM // 2), DIM // 2)  # of the other half
    c = tl.load(cos + position * (DIM // 2) + dim % (DIM // 2))
    s = tl.load(sin + position * (DIM // 2) + dim % (DIM // 2))
    s = tl.where(dim < DIM // 2, -s, s)
    x = tl.load(heads + dim[None, :], mask=inside, other=0.0)
    other = tl.load(heads + pair[None, :], mask=inside, other=0.0)
    if NORM:
        c *= tl.load(weight + dim).to(tl.float32)
        s *= tl.load(weight + pair).to(tl.float32)
        squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
        factor = tl.rsqrt(squares / DIM + EPS)[:, None]
        return (x.to(tl.float32) * c[None, :] + other.to(tl.float32) * s[None, :]) * factor
    return x.to(tl.float32) * c[None, :] + other.to(tl.float32) * s[None, :]


@jit
def _attend_to_own(
    tile, queries, k, v, suffix_k, suffix_v, ancestors, first_row, num_beams, num_rows,
    k_stride, v_stride, suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
    highest, total, weighted,
    FACTOR: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, TILE_BEAMS: tl.constexpr,
    SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr,
):  # fmt: skip
    """Own key 0 of a beam is the new one, own key j + 1 that of slot j; this is keys tile * SLOTS and on."""
    dim = tl.arange(0, DIM)
    own = tl.arange(0, TILE_BEAMS * SLOTS)
    beam = own // SLOTS
    index = tile * SLOTS + own % SLOTS
    slot = (index - 1).to(tl.int64)
    row = first_row + beam
    is_new = (index == 0) & (beam < num_beams)
    is_stored = (index > 0) & (index <= ALL_SLOTS) & (beam < num_beams)
    source = tl.load(ancestors + slot * num_rows + row, mask=is_stored, other=-1)
    there = is_new | (source >= 0)
    old_k = suffix_k + slot * suffix_k_slot + source * suffix_k_stride
    old_v = suffix_v + slot * suffix_v_slot + source * suffix_v_stride
    key_at = tl.multiple_of(tl.where(is_new, k + row * k_stride, old_k), 16)
    value_at = tl.multiple_of(tl.where(is_new, v + row * v_stride, old_v), 16)
    keys = tl.load(key_at[None, :] + dim[:, None], mask=there[None, :], other=0.0)
    values = tl.load(value_at[:, None] + dim[None, :], mask=there[:, None], other=0.0)
    # Zero times another beam's NaN would be NaN: what is not finite goes to its own beam's scores instead.
    zeros = values.to(tl.float32) * 0.0
    values = tl.where(zeros == 0.0, values, 0.0)
    is_mine = (tl.arange(0, TILE_BEAMS * PADDED) // PADDED)[:, None] == beam[None, :]
    return _attend(
        queries, keys, values, is_mine & there[None, :], tl.sum(zeros, 1), FACTOR, highest, total, weighted
    )


@jit
def _rotate_and_keep(
    q, k, v, new_k, new_v, out, q_weight, k_weight, cos, sin, position, first_row, num_beams, kv_head,
    q_stride, k_stride, v_stride, new_k_stride, new_v_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, TILE_BEAMS: tl.constexpr,
    NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A tile's keys and values into the suffix; its queries to where the answers will be, a head at a time,
    as all of them at once take too many registers."""
    dim = tl.arange(0, DIM)[None, :]
    row = (first_row + tl.arange(0, TILE_BEAMS)).to(tl.int64)[:, None]
    inside = (tl.arange(0, TILE_BEAMS) < num_beams)[:, None]
    head = kv_head * DIM
    turned = _rotate(k + row * k_stride + head, inside, k_weight, cos, sin, position, DIM, NORM, EPS)
    tl.store(new_k + row * new_k_stride + head + dim, turned.to(new_k.dtype.element_ty), mask=inside)
    value = tl.load(v + row * v_stride + head + dim, mask=inside, other=0.0)
    tl.store(new_v + row * new_v_stride + head + dim, value, mask=inside)
    for member in tl.static_range(GROUP):
        head = (kv_head * GROUP + member) * DIM
        turned = _rotate(q + row * q_stride + head, inside, q_weight, cos, sin, position, DIM, NORM, EPS)
        tl.store(out + row * (HEADS * DIM) + head + dim, turned.to(out.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # what threads of this program wrote, others of it read


@jit
def beam_attention_kernel(
    q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, ancestors, cu_seqlens, out, beams, num_rows,
    positions, cos, sin, q_weight, k_weight, slot, num_positions,
    q_stride, k_stride, v_stride, prompt_k_stride, prompt_v_stride,
    suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
    FACTOR: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr,
    TILE_BEAMS: tl.constexpr, SLOTS: tl.constexpr, ALL_SLOTS: tl.constexpr, ALL_PADDED: tl.constexpr,
    KEYS: tl.constexpr, OWN_STAGES: tl.constexpr, KEEP: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Grid (kv heads, tiles of beams, prompts). Strides are of rows; a row's heads lie together. KEEP:
    queries and new keys come as the projection left them, and every beam of a prompt has one position."""
    kv_head = tl.program_id(0)
    first_beam = tl.program_id(1) * TILE_BEAMS
    prompt = tl.program_id(2)
    num_beams = beams - first_beam  # of this tile, or more
    first_row = (prompt * beams + first_beam).to(tl.int64)
    start = tl.load(cu_seqlens + prompt)
    length = tl.load(cu_seqlens + prompt + 1) - start
    dim = tl.arange(0, DIM)
    beam = tl.arange(0, TILE_BEAMS * PADDED) // PADDED
    member = tl.arange(0, TILE_BEAMS * PADDED) % PADDED
    wanted = ((beam < num_beams) & (member < GROUP))[:, None]
    row = (first_row + beam)[:, None]
    query_head = (kv_head * GROUP + member)[:, None] * DIM + dim[None, :]
    head = kv_head * DIM
    if KEEP:
        new_k = suffix_k + tl.load(slot).to(tl.int64) * suffix_k_slot
        new_v = suffix_v + tl.load(slot).to(tl.int64) * suffix_v_slot
        position = tl.minimum(tl.maximum(tl.load(positions + first_row), 0), num_positions - 1)
        _rotate_and_keep(
            q, k, v, new_k, new_v, out, q_weight, k_weight, cos, sin, position, first_row, num_beams, kv_head,
            q_stride, k_stride, v_stride, suffix_k_stride, suffix_v_stride,
            HEADS, GROUP, DIM, TILE_BEAMS, NORM, EPS,
        )  # fmt: skip
        k = new_k
        k_stride = suffix_k_stride
        queries = tl.load(out + row * (HEADS * DIM) + query_head, mask=wanted, other=0.0)
    else:
        queries = tl.load(q + row * q_stride + query_head, mask=wanted, other=0.0)
    highest = tl.full([TILE_BEAMS * PADDED], -1e30, tl.float32)
    total = tl.zeros([TILE_BEAMS * PADDED], tl.float32)
    weighted = tl.zeros([TILE_BEAMS * PADDED, DIM], tl.float32)
    if ALL_SLOTS >= SLOTS:  # more than one tile of own keys: how many of them are in use?
        place = tl.arange(0, ALL_PADDED)[:, None]
        each = tl.arange(0, TILE_BEAMS)[None, :]
        inside = (place < ALL_SLOTS) & (each < num_beams)
        known = tl.load(ancestors + place.to(tl.int64) * num_rows + first_row + each, mask=inside, other=-1)
    highest, total, weighted = _attend_to_own(
        0, queries, k + head, v + head, suffix_k + head, suffix_v + head, ancestors, first_row, num_beams,
        num_rows, k_stride, v_stride, suffix_k_slot, suffix_k_stride, suffix_v_slot, suffix_v_stride,
        highest, total, weighted, FACTOR, PADDED, DIM, TILE_BEAMS, SLOTS, ALL_SLOTS,
    )  # fmt: skip
    if ALL_SLOTS >= SLOTS:
        used = tl.max(tl.max(tl.where(known >= 0, place + 1, 0), 1), 0)
        for tile in tl.range(1, used // SLOTS + 1, num_stages=OWN_STAGES):
            highest, total, weighted = _attend_to_own(
                tile, queries, k + head, v + head, suffix_k + head, suffix_v + head, ancestors, first_row,
                num_beams, num_rows, k_stride, v_stride, suffix_k_slot, suffix_k_stride, suffix_v_slot,
                suffix_v_stride, highest, total, weighted, FACTOR, PADDED, DIM, TILE_BEAMS, SLOTS, ALL_SLOTS,
            )  # fmt: skip
    key = tl.arange(0, KEYS)
    nothing = tl.zeros([KEYS], tl.float32)
    key_at = prompt_k + (start + key).to(tl.int64)[None, :] * prompt_k_stride + head + dim[:, None]
    value_at = prompt_v + (start + key).to(tl.int64)[:, None] * prompt_v_stride + head + dim[None, :]
    for begin in tl.range(0, length, KEYS):
        there = begin + key < length
        keys = tl.load(key_at + begin * prompt_k_stride, mask=there[None, :], other=0.0)
        values = tl.load(value_at + begin * prompt_v_stride, mask=there[:, None], other=0.0)
        highest, total, weighted = _attend(
            queries, keys, values, there[None, :], nothing, FACTOR, highest, total, weighted
        )
    result = weighted / total[:, None]
    tl.store(out + row * (HEADS * DIM) + query_head, result.to(out.dtype.element_ty), mask=wanted)
