"""boundgen::varlen_attention: causal attention inside each segment of a packed batch, grouped heads.

    out[t, h] = sum_s p[s] v[s, h'] / sum_s p[s]      p[s] = 2^(q[t, h] · k[s, h'] - max), first(t) <= s <= t

With prefixes s also runs over the segment's constant rows and over its parent, as in ops.packed_attention:
two loops before the others, of no steps where there is none. The softmax is in base 2: q comes multiplied by
log2(e) / sqrt(D). A program takes one tile of a segment's tokens with all query heads of one key head:
ROWS = tokens x group rows, so keys and values are read once for the group. Tiles come from attention_tiles;
rows of no segment are not written.
"""

from torch import Tensor
from torch.library import wrap_triton

from engine.ops.portable import reference
from engine.ops.portable.integers import to_int8
from engine.ops.portable.language import jit, next_power_of_2, register, tl
from engine.ops.portable.quantised import MODES, Activation, check_mode, empty_quantised

HEAD_DIMS = (16, 32, 64, 128)  # what a tile of a tensor core and the registers allow


def tile_rows(group: int) -> int:
    """Rows of a program: 64 where the group leaves at least 16 tokens of them, else 128."""
    return 64 if group <= 4 else max(128, 16 * next_power_of_2(group))


def tile_tokens(heads: int, kv_heads: int) -> int:
    """Tokens of a tile, what attention_tiles must cut samples into."""
    group = heads // kv_heads
    return tile_rows(group) // group


@jit
def _attend_to_all(
    queries, k, v, k_stride, v_stride, count, highest, total, weighted,
    DIM: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every row attends to `count` keys from k[0, DIM] on."""
    dim = tl.arange(0, DIM)
    key = tl.arange(0, KEYS)
    for at in tl.range(0, count, KEYS, num_stages=STAGES):
        there = at + key < count
        keys = tl.load(k + (at + key)[None, :] * k_stride + dim[:, None], mask=there[None, :], other=0.0)
        scores = tl.where(there[None, :], tl.dot(queries, keys), -1e30)
        peak = tl.maximum(highest, tl.max(scores, 1))
        weight = tl.exp2(scores - peak[:, None])
        shrink = tl.exp2(highest - peak)
        total = total * shrink + tl.sum(weight, 1)
        highest = peak
        values = tl.load(v + (at + key)[:, None] * v_stride + dim[None, :], mask=there[:, None], other=0.0)
        weighted = tl.dot(weight.to(v.dtype.element_ty), values, weighted * shrink[:, None])
    return highest, total, weighted


@jit
def _quantise(result, scale, MODE: tl.constexpr):
    """What is stored of [ROWS, DIM]; by "heads" their factors are in it already."""
    if MODE == 1:
        result = tl.clamp(result * (1.0 / tl.load(scale)), -448.0, 448.0)
    if MODE == 4:
        result = to_int8(result)
    return result


@jit
def _varlen_attention(
    q, k, v, tiles, scale, out, q_stride, k_stride, v_stride, num_tokens,
    cu_seqlens, prefixes, constant_k, constant_v, constant_k_stride, constant_v_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, QUANTISE: tl.constexpr,
    PREFIXES: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    tile = tiles + tl.program_id(1) * 4
    start = tl.load(tile)
    length = tl.minimum(tl.load(tile + 1), num_tokens - start)
    begin = tl.load(tile + 2)
    if begin >= length:
        return
    row = tl.arange(0, ROWS)
    token = begin + row // GROUP
    wanted = ((row < TOKENS * GROUP) & (token < length))[:, None]
    dim = tl.arange(0, DIM)
    key = tl.arange(0, KEYS)
    head = (kv_head * GROUP + row % GROUP)[:, None] * DIM
    queries = tl.load(q + (start + token)[:, None] * q_stride + head + dim[None], mask=wanted, other=0.0)
    key_at = k + (start + key)[None, :] * k_stride + kv_head * DIM + dim[:, None]
    value_at = v + (start + key)[:, None] * v_stride + kv_head * DIM + dim[None, :]
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, DIM], tl.float32)
    if PREFIXES:
        before = prefixes + tl.load(tile + 3) * 2
        highest, total, weighted = _attend_to_all(
            queries, constant_k + kv_head * DIM, constant_v + kv_head * DIM,
            constant_k_stride, constant_v_stride, tl.load(before + 1), highest, total, weighted,
            DIM, KEYS, STAGES,
        )  # fmt: skip
        parent = tl.load(before)
        at = cu_seqlens + tl.maximum(parent, 0)
        first = tl.load(at)
        count = tl.where(parent < 0, 0, tl.load(at + 1) - first)
        highest, total, weighted = _attend_to_all(
            queries, k + first * k_stride + kv_head * DIM, v + first * v_stride + kv_head * DIM,
            k_stride, v_stride, count, highest, total, weighted, DIM, KEYS, STAGES,
        )  # fmt: skip
    visible = begin // KEYS * KEYS  # every key before it is seen by every token of the tile
    for at in tl.range(0, visible, KEYS, num_stages=STAGES):
        scores = tl.dot(queries, tl.load(key_at + at * k_stride))
        peak = tl.maximum(highest, tl.max(scores, 1))
        weight = tl.exp2(scores - peak[:, None])
        shrink = tl.exp2(highest - peak)
        total = total * shrink + tl.sum(weight, 1)
        highest = peak
        weighted = tl.dot(
            weight.to(v.dtype.element_ty), tl.load(value_at + at * v_stride), weighted * shrink[:, None]
        )
    for at in tl.range(visible, tl.minimum(begin + TOKENS, length), KEYS, num_stages=STAGES):
        there = at + key < length
        scores = tl.dot(queries, tl.load(key_at + at * k_stride, mask=there[None, :], other=0.0))
        scores = tl.where((at + key)[None, :] <= token[:, None], scores, -1e30)
        peak = tl.maximum(highest, tl.max(scores, 1))
        weight = tl.exp2(scores - peak[:, None])
        shrink = tl.exp2(highest - peak)
        total = total * shrink + tl.sum(weight, 1)
        highest = peak
        values = tl.load(value_at + at * v_stride, mask=there[:, None], other=0.0)
        weighted = tl.dot(weight.to(v.dtype.element_ty), values, weighted * shrink[:, None])
    if QUANTISE == 4:
        total /= tl.load(scale + kv_head * GROUP + row % GROUP)
    result = _quantise(weighted / total[:, None], scale, QUANTISE)
    target = out + (start + token)[:, None] * (HEADS * DIM) + head + dim[None]
    tl.store(target, result.to(out.dtype.element_ty), mask=wanted)


def _allocate(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, cu_seqlens: Tensor, scale: Tensor | None,
    prefixes: Tensor | None = None, constant_k: Tensor | None = None, constant_v: Tensor | None = None,
    quantise: str = "static",
) -> Tensor:  # fmt: skip
    mode = "none" if scale is None else quantise
    return empty_quantised(q, (q.shape[0], q.shape[1] * q.shape[2]), mode)[0]


@register("varlen_attention", allocate=_allocate, cpu=reference.varlen_attention)
def _launch(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, cu_seqlens: Tensor, scale: Tensor | None,
    prefixes: Tensor | None = None, constant_k: Tensor | None = None, constant_v: Tensor | None = None,
    quantise: str = "static",
) -> Tensor:  # fmt: skip
    out = _allocate(q, k, v, tiles, cu_seqlens, scale, quantise=quantise)
    heads, kv_heads, dim = q.shape[1], k.shape[1], q.shape[2]
    group = heads // kv_heads
    key, value = (k, v) if constant_k is None or constant_v is None else (constant_k, constant_v)
    wrap_triton(_varlen_attention)[(kv_heads, tiles.shape[0])](
        q, k, v, tiles, out if scale is None else scale, out, q.stride(0), k.stride(0), v.stride(0),
        q.shape[0], cu_seqlens, cu_seqlens if prefixes is None else prefixes, key, value, key.stride(0),
        value.stride(0),
        HEADS=heads, GROUP=group, DIM=dim, TOKENS=tile_tokens(heads, kv_heads), ROWS=tile_rows(group),
        KEYS=32, STAGES=2, QUANTISE=MODES["none" if scale is None else quantise],
        PREFIXES=prefixes is not None, num_warps=4 if tile_rows(group) == 64 else 8,
    )  # fmt: skip
    return out


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, cu_seqlens: Tensor, *,
    scale: Tensor | None = None, before: tuple[Tensor, Tensor, Tensor] | None = None,
    quantise: str = "static",
) -> Activation:  # fmt: skip
    """q[T, heads, D], k and v [T, kv_heads, D] with any row stride, tiles of attention_tiles -> [T, heads *
    D].

    before: prefixes int32[S, 2] and a constant prefix' k and v [P, kv_heads, D], as ops.packed_attention
    takes them. scale: e4m3 of out / scale, float32[1], or by "heads" int8 of out * scale, float32[heads].
    ValueError for a D not in HEAD_DIMS or heads that do not group.
    """
    check_mode("none" if scale is None else quantise, scale, ("none", "static", "heads"))
    if q.shape[2] not in HEAD_DIMS:
        raise ValueError(f"head_dim = {q.shape[2]!r}: must be one of {HEAD_DIMS}")
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"heads = {q.shape[1]!r}: must be a multiple of kv_heads = {k.shape[1]}")
    out = _launch(q, k, v, tiles, cu_seqlens, scale, *(before or ()), quantise=quantise)
    return Activation(out, scale if quantise == "static" else None)
