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

    `prefix`: how many leading tokens every prompt of the pipeline shares, at most all but one. `search`:
    width and steps of the pipeline's beams, None where it searches for none.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...] = ()
    prefix: int = 0
    search: tuple[int, int] | None = None


def exact_tokens(texts: Sequence[Text]) -> Tensor | None:
    """bool over the packed tokens of `texts`: those of a constant prefix; None where there is none."""
    if not any(text.prefix for text in texts):
        return None
    return torch.cat([torch.arange(len(text.ids)) < text.prefix for text in texts])


def batches(
    texts: Sequence[Text], most_tokens: int = BATCH_TOKENS, most_texts: int = 1 << 30
) -> Iterator[tuple[list[Text], PackedBatch]]:
    """Whole texts, in order, up to `most_tokens` together (a longer one alone) and `most_texts`."""
    waiting: list[Text] = []
    total = 0
    for text in texts:
        if waiting and (total + len(text.ids) > most_tokens or len(waiting) == most_texts):
            yield waiting, pack([each.ids for each in waiting])
            waiting, total = [], 0
        waiting.append(text)
        total += len(text.ids)
    if waiting:
        yield waiting, pack([each.ids for each in waiting])


def spread(texts: Sequence[Text], most_tokens: int, most_texts: int = 1 << 30) -> list[Text]:
    """Evenly spaced whole texts, for a file may be sorted: as many as have at most `most_tokens` together, at
    least one where there are any."""
    count = min(len(texts), most_texts)
    while True:
        kept = [texts[place * len(texts) // count] for place in range(count)]
        total = sum(len(text.ids) for text in kept)
        if total <= most_tokens or count <= 1:
            return kept
        count = max(1, min(count - 1, count * most_tokens // total))
