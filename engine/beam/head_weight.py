"""The head of a search: which rows of the vocabulary are multiplied at each position, and in which precision.

In 8 bits hidden states are quantised by row, and the raw product (both scales 1) runs at the speed of one
scale a tensor:

    logits[r, v] = (q[r] · w[v]) * scale[r] * weight_scale

They choose a pool of continuations, whose logits are computed again from the head as it was
(engine.ops.portable.beam_rescore): alone, 8 bits lose a third of SmolLM2-135M's winners.

Immutable; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.beam.search import Head, SearchPlan
from engine.beam.selection import Exact, Pool, RawLogits
from engine.ops.portable.linear import linear_e4m3, quantise_weight
from engine.ops.portable.quantise import quantise_rows
from engine.ops.portable.quantised import Activation

ON_CUDA_AT_ONCE = 1 << 31  # entries of one product: all prompts together, as fast as it goes
POOL: Pool | None = Pool()  # None: the 8-bit logits alone decide
_STEP = 16  # rows that an 8-bit product takes


@dataclass(frozen=True)
class HeadWeight:
    """weight[V, H]; narrow e4m3[V, H] and its scale float32[1], where the head runs in 8 bits; `pool`:
    of what is then computed again from `weight`, in its own type."""

    weight: Tensor
    narrow: Tensor | None = None
    narrow_scale: Tensor | None = None
    pool: Pool | None = POOL

    def of(self, plan: SearchPlan) -> Head:
        """For one plan's slices."""
        on_cuda = self.weight.device.type == "cuda"
        more = {"at_once": ON_CUDA_AT_ONCE} if on_cuda else {}
        if self.narrow is None or self.narrow_scale is None:
            return Head(self.weight, plan.slices, **more)
        one = torch.ones(1, device=self.weight.device)
        return NarrowHead(
            self.weight, plan.slices, **more,
            narrow=self.narrow, scale=self.narrow_scale, one=one, pool=self.pool,
        )  # fmt: skip


def narrow_head(head: Tensor) -> tuple[Tensor, Tensor] | None:
    """head[V, H] in 8 bits and its scale, where the library's product takes it (multiples of 16)."""
    if head.shape[0] % _STEP or head.shape[1] % _STEP:
        return None
    return quantise_weight(head)


@dataclass(frozen=True, kw_only=True)
class NarrowHead(Head):
    """In 8 bits."""

    narrow: Tensor
    scale: Tensor
    one: Tensor
    pool: Pool | None

    def logits(self, hidden: Tensor, position: int) -> Tensor | RawLogits:
        begin, end = self.bounds(position)
        # Slices begin and end anywhere; the product takes whole sixteens of rows.
        low, high = begin // _STEP * _STEP, -(-end // _STEP) * _STEP
        hidden = hidden.to(self.weight.dtype)  # an emulation's are wider
        quantised = quantise_rows(hidden.flatten(0, -2), self.scale)
        assert quantised.scale is not None
        raw = linear_e4m3(Activation(quantised.values, self.one), self.narrow[low:high], self.one)
        values = raw[:, begin - low : end - low].contiguous()  # of whole slices: no copy
        scales = quantised.scale.view(hidden.shape[:-1])
        exact = None if self.pool is None else Exact(hidden, self.weight[begin:end], self.pool)
        return RawLogits(values.view(*hidden.shape[:-1], end - begin), scales, exact)
