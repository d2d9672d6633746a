"""Tokenised texts to calibrate on and to judge by, in packed batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.packed import PackedBatch, pack

BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Text:
    """Token ids of one prompt; `labels`: tokens of its pipeline's labels, none where it has none.

    `prefix`: how many leading tokens every prompt of the pipeline shares, at most all but one.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...] = ()
    prefix: int = 0


def exact_tokens(texts: Sequence[Text]) -> Tensor | None:
    """bool over the packed tokens of `texts`: those of a constant prefix; None where there is none."""
    if not any(text.prefix for text in texts):
        return None
    return torch.cat([torch.arange(len(text.ids)) < text.prefix for text in texts])


def batches(
    texts: Sequence[Text], most_tokens: int = BATCH_TOKENS
) -> Iterator[tuple[list[Text], PackedBatch]]:
    """Whole texts, in order, up to `most_tokens` together (a longer one alone)."""
    waiting: list[Text] = []
    for text in texts:
        if waiting and sum(len(each.ids) for each in waiting) + len(text.ids) > most_tokens:
            yield waiting, pack([each.ids for each in waiting])
            waiting = []
        waiting.append(text)
    if waiting:
        yield waiting, pack([each.ids for each in waiting])
