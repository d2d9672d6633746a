"""How far a plan's answers are from float32's on the same texts: numbers that a user can weigh.

label shift       mean over texts and labels of |log p(label) - log p32(label)|, p over the labels
next-token KL     mean over texts of sum p32 (log p32 - log p) over the whole vocabulary
label agreement   share of texts with float32's likeliest label, of those where float32 has it ahead of
                  the next by more than MARGIN (log-probability)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.ranks import Ranks
from engine.quant.rows import Matrix
from engine.quant.texts import Text, batches, exact_tokens

MARGIN = 0.2


@dataclass(frozen=True)
class Answers:
    """logits float32[texts, V] of the next token."""

    logits: Tensor

    @property
    def logprobs(self) -> Tensor:
        return self.logits.log_softmax(-1)


@dataclass(frozen=True)
class Agreement:
    """None where no text has labels, or none a margin. `texts`: how many were measured."""

    texts: int
    label_shift: float | None
    label_shift_max: float | None
    label_agreement: float | None
    next_token_kl: float
    ranks: Ranks | None = None  # of the searches among the texts, where there are any


def answer(
    decoder: EmulatedDecoder, head: Tensor, texts: Sequence[Text], matrices: Mapping[Place, Matrix],
    *, prefix: bool = True,
) -> Answers:  # fmt: skip
    """head float32[V, H]. `prefix`: constant prefixes stay in full precision."""
    with torch.inference_mode():
        hidden = [
            decoder.run(packed, matrices, exact_rows(some, len(packed.input_ids)) if prefix else None)
            for some, packed in batches(texts)
        ]
        return Answers(torch.cat(hidden) @ head.T)


def exact_rows(texts: Sequence[Text], num_tokens: int) -> Tensor | None:
    """exact_tokens with the packed batch's own padding behind it."""
    exact = exact_tokens(texts)
    if exact is None or len(exact) == num_tokens:
        return exact
    return torch.cat([exact, torch.zeros(num_tokens - len(exact), dtype=torch.bool)])


def compare(reference: Answers, found: Answers, texts: Sequence[Text]) -> Agreement:
    """`texts` in the order of both answers."""
    expected, got = reference.logprobs, found.logprobs
    divergence = (expected.exp() * (expected - got)).sum(-1)
    shifts, agreed = [], []
    for index, text in enumerate(texts):
        if not text.labels:
            continue
        rows = list(text.labels)
        theirs, ours = (a.logits[index, rows].log_softmax(-1) for a in (reference, found))
        shifts.append((ours - theirs).abs())
        top = theirs.topk(2).values if len(rows) > 1 else None
        if top is not None and float(top[0] - top[1]) > MARGIN:
            agreed.append(int(ours.argmax()) == int(theirs.argmax()))
    shift = torch.cat(shifts) if shifts else None
    return Agreement(
        texts=len(texts),
        label_shift=None if shift is None else float(shift.mean()),
        label_shift_max=None if shift is None else float(shift.max()),
        label_agreement=sum(agreed) / len(agreed) if agreed else None,
        next_token_kl=max(0.0, float(divergence.mean())),  # rounding alone goes below
    )
