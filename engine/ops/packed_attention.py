"""boundgen::packed_attention: causal attention inside each segment of a packed batch, and to its prefixes.

    out[t] = softmax(q[t] · K / sqrt(D)) · V      K = constant_k[:n] ++ k[segment p] ++ k[s..t], V alike

s is the first token of t's segment; (p, n) = prefixes[segment] name what comes before it: another whole
segment (-1: none) and the first n rows of a constant prefix. A sample without either is a segment of its own.

This module declares the operator and gives it a kernel for any device, one segment after another; eager runs
without the native library use it. packed_attention.cpp has the kernels that serve: a compiled package
calls them without Python. Importing the module registers the operator, once a process.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "boundgen::packed_attention"

_library = torch.library.Library("boundgen", "DEF")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "packed_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int max_seqlen, "
    "Tensor? prefixes=None, Tensor? constant_k=None, Tensor? constant_v=None) -> Tensor"
)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    prefixes: Tensor | None = None,
    constant: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """q[T, Hq, D], k and v[T, Hkv, D] (Hkv divides Hq), cu_seqlens int32[S+1] -> [T, Hq, D], contiguous.

    No segment is longer than `max_seqlen`. prefixes int32[S, 2] with `constant` (k and v [P, Hkv, D]) of at
    least every n; prefixes of another length than S, or None: no segment has any. A segment's p has no p of
    its own. Scores are accumulated in float32.
    """
    constant_k, constant_v = constant or (None, None)
    out: Tensor = torch.ops.boundgen.packed_attention(
        q, k, v, cu_seqlens, max_seqlen, prefixes, constant_k, constant_v
    )
    return out


def _attend_by_segment(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    prefixes: Tensor | None = None,
    constant_k: Tensor | None = None,
    constant_v: Tensor | None = None,
) -> Tensor:
    # On CUDA tolist waits for the device: good for tests, never reached where the native library is loaded.
    borders = list(pairwise(cu_seqlens.tolist()))
    before: list[list[int]] = [[-1, 0]] * len(borders)
    if prefixes is not None and len(prefixes) == len(borders):
        before = prefixes.tolist()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for (start, stop), (parent, count) in zip(borders, before, strict=True):
        keys, values = [k[start:stop]], [v[start:stop]]
        if parent >= 0:
            keys, values = [k[slice(*borders[parent])], *keys], [v[slice(*borders[parent])], *values]
        if count > 0 and constant_k is not None and constant_v is not None:
            keys, values = [constant_k[:count], *keys], [constant_v[:count], *values]
        parts = (q[start:stop], torch.cat(keys), torch.cat(values))
        query, key, value = (x.transpose(0, 1).unsqueeze(0) for x in parts)
        visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=q.device)
        visible = visible.tril(key.shape[2] - query.shape[2])
        segment = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)
        out[start:stop] = segment.squeeze(0).transpose(0, 1)
    return out


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Tensor | int | None) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


# A kernel for CPU or CUDA from the native library takes precedence over this key, without replacing anything.
_library.impl(  # type: ignore[no-untyped-call]
    "packed_attention", _attend_by_segment, "CompositeExplicitAutograd"
)
torch.library.register_fake(NAME, _fake, lib=_library)
