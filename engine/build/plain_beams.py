"""The plainest beam search over a transformers model: a token a step, behind transformers' own cache.

Nothing of the engine is used, and the whole vocabulary of every beam takes part in every selection. The model
is float32; log-probabilities are normalised and summed in float64, since torch's float32 log_softmax alone is
off by 1.6e-5 over 49,152 tokens, always to the same side.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


@dataclass(frozen=True)
class PlainBeams:
    """Best first. `gap` is the smallest difference of two scores that decided about order or membership,
    `cut` that of the last kept and the first dropped: where one is tiny, another order of summation may
    decide otherwise."""

    tokens: list[tuple[int, ...]]
    scores: list[float]
    gap: float
    cut: float


def search_plainly(model: Any, prompt: Sequence[int], width: int, steps: int) -> PlainBeams:
    """The best `width` sequences of `steps` + 1 tokens after `prompt`, by a transformers causal model."""
    unread = torch.tensor([list(prompt)], device=model.device)
    found, cache = unread[:, :0], DynamicCache(config=model.config)
    # transformers renames the argument: "cache" from 5.24 on, and the old name warns
    named = {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}
    scores = torch.zeros(1, dtype=torch.float64, device=model.device)
    gap = cut = torch.inf
    with torch.inference_mode():
        for _ in range(steps + 1):
            logits = model(unread, use_cache=True, logits_to_keep=1, **named).logits[:, -1].double()
            candidates = (logits.log_softmax(-1) + scores[:, None]).flatten()
            count = min(width, len(candidates))
            index = _best(candidates, count + 1)
            kept = candidates[index]
            if len(kept) > 1:
                gap = min(gap, float((kept[:-1] - kept[1:]).min()))
            if len(kept) > count:
                cut = min(cut, float(kept[count - 1] - kept[count]))
            scores, index = kept[:count], index[:count]
            parents, unread = index // logits.shape[1], (index % logits.shape[1])[:, None]
            found = torch.cat((found[parents], unread), 1)
            cache.reorder_cache(parents)
    return PlainBeams(list(map(tuple, found.tolist())), scores.tolist(), gap, cut)


def _best(scores: Tensor, count: int) -> Tensor:
    """Places of the `count` greatest, or of all: best first, of equal ones the first."""
    least = scores.topk(min(count, len(scores))).values[-1]
    places = (scores >= least).nonzero()[:, 0]
    return places[scores[places].sort(descending=True, stable=True).indices][:count]
