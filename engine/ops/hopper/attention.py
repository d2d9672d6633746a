"""Causal attention over packed samples, short sequences, grouped kv heads.

    s = q k^T (base-2 logits: q carries log2(e) / sqrt(head_dim)), keys after the query's token masked
    out = softmax_2(s) v * scales[q head]                bf16, e4m3 or int8

Probabilities are rounded to bf16 before the second product, as in every flash attention. A head's outputs are
stored in the order layout.attention_columns (o's columns follow). A sample sees only its own rows; rows
behind the last sample count as samples of up to 64 tokens. Kernel: csrc/attention.cu.
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
from engine.ops.hopper.quantise import quantise


@torch.library.custom_op("boundgen::hopper_attention", mutates_args=(), device_types="cuda")
def attention(
    library: str,
    qkv: Tensor,
    items: Tensor,
    offsets: Tensor,
    scales: Tensor,
    num_q: int,
    num_kv: int,
    output: torch.dtype,
) -> Tensor:
    """qkv bf16[T, (num_q + 2 num_kv) D], work list of hopper_plan, scales float32[num_q] -> [T, num_q D] of
    type `output`.
    """
    check_element("output", output)
    tokens, head_dim = qkv.shape[0], qkv.shape[1] // (num_q + 2 * num_kv)
    if head_dim not in (64, 128) or num_q % num_kv:
        raise ValueError(
            f"head size {head_dim}, num_q {num_q}, num_kv {num_kv}: wanted 64 or 128, num_q % num_kv == 0"
        )
    check("qkv", qkv, (-1, (num_q + 2 * num_kv) * head_dim), torch.bfloat16)
    check("items", items, (-1, 4), torch.int32)
    check("offsets", offsets, (-1,), torch.int32)
    check("scales", scales, (num_q,), torch.float32)
    out = qkv.new_empty((tokens, num_q * head_dim), dtype=output)
    tensors = map(pointer, (qkv, items, offsets, out, scales))
    sizes = (tokens, num_q, num_kv, head_dim, ELEMENT_CODES[output], offsets.shape[0] - 1, 1)
    call(library, "attention", AttentionCall(*tensors, *sizes, current_stream(qkv)))
    return out


@attention.register_fake
def _(
    library: str,
    qkv: Tensor,
    items: Tensor,
    offsets: Tensor,
    scales: Tensor,
    num_q: int,
    num_kv: int,
    output: torch.dtype,
) -> Tensor:
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // (num_q + 2 * num_kv) * num_q), dtype=output)


@attention.register_kernel("cpu")
def attention_reference(
    library: str,
    qkv: Tensor,
    items: Tensor,
    offsets: Tensor,
    scales: Tensor,
    num_q: int,
    num_kv: int,
    output: torch.dtype,
) -> Tensor:
    """The oracle: item by item from the same work list, plain torch. Rows that no item covers stay unwritten
    (NaN in bf16).
    """
    tokens, head_dim = qkv.shape[0], qkv.shape[1] // (num_q + 2 * num_kv)
    heads = qkv.float().view(tokens, -1, head_dim)
    q, k, v = heads[:, :num_q], heads[:, num_q : num_q + num_kv], heads[:, num_q + num_kv :]
    out = torch.full((tokens, num_q, head_dim), torch.nan, device=qkv.device)
    samples = {(start, length) for start, length, _, _ in items[: int(offsets[-1])].tolist()}
    for start, length in samples:
        rows = slice(start, start + length)
        keys, values = (t[rows].repeat_interleave(num_q // num_kv, 1).transpose(0, 1) for t in (k, v))
        s = q[rows].transpose(0, 1) @ keys.transpose(1, 2)
        s = s.masked_fill(torch.ones(length, length, device=s.device).triu(1).bool(), -1e30)
        p = torch.exp2(s - s.amax(-1, keepdim=True))
        out[rows] = ((p.bfloat16().float() @ values) / p.sum(-1, keepdim=True)).transpose(0, 1)
    scaled = (out * scales[:, None]).reshape(tokens, -1)
    return quantise(scaled[:, attention_columns(num_q, head_dim).to(qkv.device)], output)
