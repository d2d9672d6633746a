"""Causal attention over packed segments and their prefixes, short sequences, grouped kv heads.

    s = q k^T (base-2 logits: q carries log2(e) / sqrt(head_dim)), keys after the query's token masked
    out = softmax_2(s) v * scales[q head]                bf16, e4m3 or int8
    k = constant[0, :n] ++ k[parent's rows] ++ k[own rows], v alike

Probabilities are rounded to bf16 before the second product, as in every flash attention. A head's outputs are
stored in the order layout.attention_columns (o's columns follow). A segment sees only its own rows and those
of its prefixes, which the work list names (plan.py); rows behind the last segment count as segments of up to
64 tokens. All rows of qkv and of the constant prefix must be finite, used or not: those behind a prefix' end
are multiplied with a probability of zero. Kernel: csrc/attention.cu.
"""

import torch
from torch import Tensor

from engine.ops.hopper.layout import attention_columns
from engine.ops.hopper.library import (
    ELEMENT_CODES,
    AttentionCall,
    call,
    check,
    check_element,
    current_stream,
    pointer,
)
from engine.ops.hopper.plan import ITEM
from engine.ops.hopper.quantise import quantise


@torch.library.custom_op("boundgen::hopper_attention", mutates_args=(), device_types="cuda")
def attention(  # noqa: PLR0913, PLR0917 - an exported graph passes tensors and numbers, not objects
    library: str,
    qkv: Tensor,
    items: Tensor,
    offsets: Tensor,
    scales: Tensor,
    num_q: int,
    num_kv: int,
    output: torch.dtype,
    constant: Tensor | None = None,
) -> Tensor:
    """qkv bf16[T, (num_q + 2 num_kv) D], work list of hopper_plan, scales float32[num_q], constant prefix
    bf16[2, P, num_kv, D] (keys rotated, then values; P no less than any segment's n, None where all are 0)
    -> [T, num_q D] of type `output`.
    """
    check_element("output", output)
    tokens, head_dim = qkv.shape[0], qkv.shape[1] // (num_q + 2 * num_kv)
    if head_dim not in (64, 128) or num_q % num_kv:
        raise ValueError(
            f"head size {head_dim}, num_q {num_q}, num_kv {num_kv}: wanted 64 or 128, num_q % num_kv == 0"
        )
    check("qkv", qkv, (-1, (num_q + 2 * num_kv) * head_dim), torch.bfloat16)
    check("items", items, (-1, ITEM), torch.int32)
    check("offsets", offsets, (-1,), torch.int32)
    check("scales", scales, (num_q,), torch.float32)
    constant_rows = 0
    if constant is not None:
        check("constant", constant, (2, -1, num_kv, head_dim), torch.bfloat16)
        constant_rows = constant.shape[1]
    out = qkv.new_empty((tokens, num_q * head_dim), dtype=output)
    tensors = map(pointer, (qkv, constant, items, offsets, out, scales))
    sizes = (tokens, constant_rows, num_q, num_kv, head_dim)
    more = (ELEMENT_CODES[output], offsets.shape[0] - 1, 1)
    call(library, "attention", AttentionCall(*tensors, *sizes, *more, current_stream(qkv)))
    return out


@attention.register_fake
def _(  # noqa: PLR0913, PLR0917
    library: str,
    qkv: Tensor,
    items: Tensor,
    offsets: Tensor,
    scales: Tensor,
    num_q: int,
    num_kv: int,
    output: torch.dtype,
    constant: Tensor | None = None,
) -> Tensor:
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // (num_q + 2 * num_kv) * num_q), dtype=output)


@attention.register_kernel("cpu")
def attention_reference(  # noqa: PLR0913, PLR0917
    library: str,
    qkv: Tensor,
    items: Tensor,
    offsets: Tensor,
    scales: Tensor,
    num_q: int,
    num_kv: int,
    output: torch.dtype,
    constant: Tensor | None = None,
) -> Tensor:
    """The oracle: item by item from the same work list, plain torch. Rows that no item covers stay unwritten
    (NaN in bf16).
    """
    tokens, head_dim = qkv.shape[0], qkv.shape[1] // (num_q + 2 * num_kv)
    heads = qkv.float().view(tokens, -1, head_dim)
    q, k, v = heads[:, :num_q], heads[:, num_q : num_q + num_kv], heads[:, num_q + num_kv :]
    out = torch.full((tokens, num_q, head_dim), torch.nan, device=qkv.device)
    group = num_q // num_kv
    prefix = torch.zeros(2, 0, num_kv, head_dim, device=qkv.device) if constant is None else constant.float()
    dealt = items[: int(offsets[-1])].tolist()
    for start, length, first, count, seen in {(*item[:2], *item[4:7]) for item in dealt}:
        rows, parent = slice(start, start + length), slice(first, first + count)
        keys, values = (
            torch.cat([each[:seen], t[parent], t[rows]]).repeat_interleave(group, 1).transpose(0, 1)
            for each, t in zip(prefix, (k, v), strict=True)
        )
        s = q[rows].transpose(0, 1) @ keys.transpose(1, 2)
        later = torch.ones(s.shape[1:], device=s.device).triu(1 + seen + count).bool()
        s = s.masked_fill(later, -1e30)
        p = torch.exp2(s - s.amax(-1, keepdim=True))
        out[rows] = ((p.bfloat16().float() @ values) / p.sum(-1, keepdim=True)).transpose(0, 1)
    scaled = (out * scales[:, None]).reshape(tokens, -1)
    return quantise(scaled[:, attention_columns(num_q, head_dim, output).to(qkv.device)], output)
