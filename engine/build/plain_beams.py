"""The plainest beam search over a transformers model: every sequence recomputed whole, float32, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class PlainBeams:
    """Best first. `gap` is the smallest difference of two scores that decided about order or membership:
    where it is tiny, another order of summation may decide otherwise."""

    tokens: list[tuple[int, ...]]
    scores: list[float]
    gap: float


def search_plainly(model: Any, prompt: Sequence[int], width: int, steps: int) -> PlainBeams:
    """The best `width` sequences of `steps` + 1 tokens after `prompt`, by a transformers causal model."""
    sequences = torch.tensor([list(prompt)], device=model.device)
    scores, gap = torch.zeros(1, device=model.device), torch.inf
    with torch.inference_mode():
        for _ in range(steps + 1):
            logits = model(sequences, use_cache=False, logits_to_keep=1).logits[:, -1].float()
            candidates = (logits.log_softmax(-1) + scores[:, None]).flatten()
            best = torch.sort(candidates, descending=True, stable=True)
            count = min(width, len(candidates))
            kept = best.values[: count + 1]
            gap = min(gap, float((kept[:-1] - kept[1:]).min())) if len(kept) > 1 else gap
            scores, index = best.values[:count], best.indices[:count]
            parents, tokens = index // logits.shape[1], index % logits.shape[1]
            sequences = torch.cat((sequences[parents], tokens[:, None]), 1)
    return PlainBeams(
        [tuple(sequence) for sequence in sequences[:, len(prompt) :].tolist()], scores.tolist(), gap
    )
