"""boundgen::beam_attention: one decode step's attention of all beams of all prompts.

Row r is beam r % W of prompt r // W. It sees its prompt's keys, those of its own suffix, and its own new one,
under one softmax:

    keys(r) = prompt_k[cu[s] .. cu[s+1]],  suffix_k[j, ancestors[j, r]] where ancestors[j, r] >= 0,  k[r]

Nothing of a prompt is copied for a beam, and no suffix is moved when beams change places: `ancestors` says
which row wrote slot j. What other entries of the suffix hold, NaN included, has no effect.

This module declares the operator and gives it a kernel for any device: plain torch of static shapes, without
synchronisation, that pads prompts to `max_seqlen`. The kernels that serve read each prompt once for all its
beams: on a CPU beam_attention.cpp, which a compiled package calls without Python; on CUDA
portable.kept_attention, which rotates and keeps as well (portable.beam_attention is its attention alone).
"""

from __future__ import annotations

import torch
from torch import Tensor

import engine.ops.packed_attention  # noqa: F401 -- defines the namespace
from engine.ops.portable.beam_attention import HEAD_DIMS, tiled_beam_attention

NAME = "boundgen::beam_attention"

_library = torch.library.Library("boundgen", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "beam_attention(Tensor q, Tensor k, Tensor v, Tensor prompt_k, Tensor prompt_v, Tensor suffix_k, "
    "Tensor suffix_v, Tensor ancestors, Tensor cu_seqlens, int max_seqlen) -> Tensor"
)


def beam_attention(
    q: Tensor, k: Tensor, v: Tensor, prompt: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor],
    ancestors: Tensor, cu_seqlens: Tensor, max_seqlen: int,
) -> Tensor:  # fmt: skip
    """q[R, Hq, D], k and v[R, Hkv, D]; prompt keys and values [T, Hkv, D], suffix ones [slots, R, Hkv, D];
    ancestors int64[slots, R], cu_seqlens int32[S+1] with R a multiple of S -> [R, Hq, D], contiguous.

    No prompt is longer than `max_seqlen`. Scores are accumulated in float32.
    """
    if q.is_cuda and q.shape[2] in HEAD_DIMS:
        return tiled_beam_attention(q, k, v, prompt, suffix, ancestors, cu_seqlens)
    out: Tensor = torch.ops.boundgen.beam_attention(
        q, k, v, *prompt, *suffix, ancestors, cu_seqlens, max_seqlen
    )
    return out


def _attend_padded(  # noqa: PLR0913, PLR0917 - the operator's schema
    q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, suffix_k: Tensor, suffix_v: Tensor,
    ancestors: Tensor, cu_seqlens: Tensor, max_seqlen: int,
) -> Tensor:  # fmt: skip
    rows, kv_heads, width = k.shape
    prompts = cu_seqlens.shape[0] - 1
    beams, group = rows // prompts, q.shape[1] // kv_heads
    starts, stops = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    index = starts[:, None] + torch.arange(max_seqlen, device=q.device)
    there = index < stops[:, None]
    # Clamped into the prompt itself: a weight of zero times its own values, never times a neighbour's.
    index = torch.minimum(index, stops[:, None] - 1)
    query = q.float().view(prompts, beams, kv_heads, group, width) / width**0.5
    scores = torch.einsum("sbhgd,slhd->sbhgl", query, prompt_k[index].float())
    scores = scores.masked_fill(~there[:, None, None, None], float("-inf"))
    # Each row's own keys: its suffix slots, then the new one.
    used = torch.cat((ancestors >= 0, torch.ones_like(ancestors[:1], dtype=torch.bool)))
    place = ancestors.clamp_min(0)[..., None, None].expand(-1, -1, kv_heads, width)
    own_k, own_v = (
        torch.cat((x.gather(1, place), new[None])).masked_fill(~used[..., None, None], 0).float()
        for x, new in ((suffix_k, k), (suffix_v, v))
    )
    own_k, own_v = (x.view(-1, prompts, beams, kv_heads, width) for x in (own_k, own_v))
    own = torch.einsum("sbhgd,jsbhd->sbhgj", query, own_k)
    own = own.masked_fill(~used.view(-1, prompts, beams).permute(1, 2, 0)[:, :, None, None], float("-inf"))
    weights = torch.cat((scores, own), -1).softmax(-1)
    out = torch.einsum("sbhgl,slhd->sbhgd", weights[..., :max_seqlen], prompt_v[index].float())
    out = out + torch.einsum("sbhgj,jsbhd->sbhgd", weights[..., max_seqlen:], own_v)
    return out.reshape(q.shape).to(q.dtype).contiguous()


def _attend_on_cuda(  # noqa: PLR0913, PLR0917 - the operator's schema
    q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, suffix_k: Tensor, suffix_v: Tensor,
    ancestors: Tensor, cu_seqlens: Tensor, max_seqlen: int,
) -> Tensor:  # fmt: skip
    prompt, suffix = (prompt_k, prompt_v), (suffix_k, suffix_v)
    if q.shape[2] in HEAD_DIMS:
        return tiled_beam_attention(q, k, v, prompt, suffix, ancestors, cu_seqlens)
    return _attend_padded(q, k, v, *prompt, *suffix, ancestors, cu_seqlens, max_seqlen)


def _fake(q: Tensor, *_: object) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


# A kernel for the CPU from the native library takes precedence over this key, without replacing anything.
_library.impl("beam_attention", _attend_padded, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_library.impl("beam_attention", _attend_on_cuda, "CUDA")  # type: ignore[no-untyped-call]
torch.library.register_fake(NAME, _fake, lib=_library)
