"""boundgen::packed_attention: causal attention inside each sample of a packed batch.

    out[t] = softmax(q[t] · k[s..t] / sqrt(D)) · v[s..t]      s = first token of t's sample

This module declares the operator and gives it a kernel for any device, one sample after another; eager runs
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
    "packed_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int max_seqlen) -> Tensor"
)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    """q[T, Hq, D], k and v[T, Hkv, D] (Hkv divides Hq), cu_seqlens int32[S+1] -> [T, Hq, D], contiguous.

    No sample is longer than `max_seqlen`. Scores are accumulated in float32.
    """
    out: Tensor = torch.ops.boundgen.packed_attention(q, k, v, cu_seqlens, max_seqlen)
    return out


def _attend_by_sample(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    # On CUDA tolist waits for the device: good for tests, never reached where the native library is loaded.
    borders = cu_seqlens.tolist()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for start, stop in pairwise(borders):
        query, key, value = (x[start:stop].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        sample = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        out[start:stop] = sample.squeeze(0).transpose(0, 1)
    return out


def _fake(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


# A kernel for CPU or CUDA from the native library takes precedence over this key, without replacing anything.
_library.impl(  # type: ignore[no-untyped-call]
    "packed_attention", _attend_by_sample, "CompositeExplicitAutograd"
)
torch.library.register_fake(NAME, _fake, lib=_library)
