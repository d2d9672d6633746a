"""boundgen::kept_beam_attention: a decode step's attention from the projection on, in one kernel.

    q, k = head_norm_rope(qkv)
    keys[layer, slot], values[layer, slot] = k, v
    out = beam_attention(q, k, v)

Half as many kernels as by kept_rotary and beam_attention, and nothing that is rotated is read again.
It writes to arguments and stays opaque to a compiler; kept_rotary.py says why it takes whole buffers.
"""

import torch
from torch import Tensor

from engine.ops.beam_attention import beam_attention
from engine.ops.portable.beam_attention import AT_ONCE, HEAD_DIMS, Rotation, attend, choose_tiles
from engine.ops.portable.beam_attention_kernel import beam_attention_kernel
from engine.ops.portable.kept_rotary import Kept, head_norm_rope_keep
from engine.ops.portable.language import capability
from engine.ops.portable.rotary import split_heads

NAME = "boundgen::kept_beam_attention"

_library = torch.library.Library("boundgen", "FRAGMENT")
_library.define(
    "kept_beam_attention(Tensor qkv, Tensor positions, Tensor cos, Tensor sin, Tensor? q_weight, "
    "Tensor? k_weight, Tensor slot, Tensor(a!) keys, Tensor(b!) values, Tensor prompt_keys, "
    "Tensor prompt_values, Tensor ancestors, Tensor cu_seqlens, int heads, int kv_heads, float eps, "
    "int layer, int max_seqlen) -> Tensor"
)

kernel = beam_attention_kernel  # a name of this module's, as tests record its launches


def _apart(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, slot: Tensor, keys: Tensor, values: Tensor, prompt_keys: Tensor,
    prompt_values: Tensor, ancestors: Tensor, cu_seqlens: Tensor, heads: int, kv_heads: int, eps: float,
    layer: int, max_seqlen: int,
) -> Tensor:  # fmt: skip
    """By the two operations that do the same: on a CPU, and for heads that no tile of a tensor core takes."""
    norms = (q_weight, k_weight) if q_weight is not None and k_weight is not None else None
    q, k, v = head_norm_rope_keep(
        qkv, positions, (cos, sin), norms, Kept(keys, values, slot, layer),
        heads=heads, kv_heads=kv_heads, eps=eps, q_scale=1.0,
    )  # fmt: skip
    prompt, suffix = (prompt_keys[layer, 0], prompt_values[layer, 0]), (keys[layer], values[layer])
    return beam_attention(q, k, v, prompt, suffix, ancestors, cu_seqlens, max_seqlen).flatten(1)


def launch(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, slot: Tensor, keys: Tensor, values: Tensor, prompt_keys: Tensor,
    prompt_values: Tensor, ancestors: Tensor, cu_seqlens: Tensor, heads: int, kv_heads: int, eps: float,
    layer: int, max_seqlen: int,
) -> Tensor:  # fmt: skip
    dim = 2 * cos.shape[1]
    if dim not in HEAD_DIMS:
        return _apart(
            qkv, positions, cos, sin, q_weight, k_weight, slot, keys, values, prompt_keys, prompt_values,
            ancestors, cu_seqlens, heads, kv_heads, eps, layer, max_seqlen,
        )  # fmt: skip
    num_rows, num_prompts = qkv.shape[0], cu_seqlens.shape[0] - 1
    out = qkv.new_empty((num_rows, heads * dim))
    group, arch = heads // kv_heads, capability(qkv)
    tiles = choose_tiles(group, dim, arch, few=True)
    if tiles.programs(kv_heads, num_rows // num_prompts, num_prompts) > AT_ONCE:
        tiles = choose_tiles(group, dim, arch)
    prompt, suffix = (prompt_keys[layer, 0], prompt_values[layer, 0]), (keys[layer], values[layer])
    projected = split_heads(qkv[:, : (heads + kv_heads) * dim], qkv, heads, kv_heads)
    attend(
        kernel, tiles, out, projected, prompt, suffix, ancestors, cu_seqlens,
        Rotation(positions, cos, sin, q_weight, k_weight, slot, eps),
    )  # fmt: skip
    return out


def _fake(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, slot: Tensor, keys: Tensor, values: Tensor, prompt_keys: Tensor,
    prompt_values: Tensor, ancestors: Tensor, cu_seqlens: Tensor, heads: int, *_: object,
) -> Tensor:  # fmt: skip
    return torch.empty((qkv.shape[0], heads * 2 * cos.shape[1]), dtype=qkv.dtype, device=qkv.device)


_library.impl("kept_beam_attention", _apart, "CPU")
_library.impl("kept_beam_attention", launch, "CUDA")
torch.library.register_fake(NAME, _fake, lib=_library)


def kept_beam_attention(
    qkv: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor] | None,
    kept: Kept, prompt: tuple[Tensor, Tensor], ancestors: Tensor, cu_seqlens: Tensor, *,
    heads: int, kv_heads: int, eps: float, max_seqlen: int,
) -> Tensor:  # fmt: skip
    """qkv[R, (heads + 2 kv_heads) * D], positions int64[R], alike for all beams of a prompt; `kept` is the
    suffixes' and written; prompt keys and values [layers, 1, T, kv_heads, D]; the rest as beam_attention ->
    [R, heads * D]."""
    q_weight, k_weight = weights or (None, None)
    out: Tensor = torch.ops.boundgen.kept_beam_attention(
        qkv,
        positions,
        *tables,
        q_weight,
        k_weight,
        kept.slot,
        kept.keys,
        kept.values,
        *prompt,
        ancestors,
        cu_seqlens,
        heads,
        kv_heads,
        eps,
        kept.layer,
        max_seqlen,
    )
    return out
