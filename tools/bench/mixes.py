"""What the engine's benchmark asks for: requests of 15 samples, in mixes of lengths and of common beginnings.

Deterministic; token ids are uniform over the vocabulary, which costs a model the same as real text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.prefixes import Ids

SAMPLES, REQUESTS = 15, 64  # of a request, of a mix; a loop takes them in turns
SHARED, CONSTANT, LENGTH = 64, 40, 150  # tokens that all samples of a request, or of the mix, begin with
DRAWN = {"mean150": (150.0, 500), "mean60": (60.0, 256)}  # log-normal lengths: mean, most
MIXES = (*DRAWN, f"shared{SHARED}of{LENGTH}", f"constant{CONSTANT}of{LENGTH}")


@dataclass(frozen=True)
class Mix:
    """`constant`: what all samples of all requests begin with, as a pipeline's template would."""

    name: str
    requests: Sequence[Sequence[Ids]]
    constant: Ids = ()


def draw_mixes(vocab_size: int) -> dict[str, Mix]:
    """Every mix by its name."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> Ids:
        return tuple(torch.randint(0, vocab_size, (count,), generator=generator).tolist())

    def continued(beginning: Ids) -> list[Ids]:
        return [beginning + draw(LENGTH - len(beginning)) for _ in range(SAMPLES)]

    mixes = []
    for name, (mean, most) in DRAWN.items():
        lengths = torch.Generator().manual_seed(0)
        requests = [[draw(n) for n in draw_lengths(SAMPLES, mean, most, lengths)] for _ in range(REQUESTS)]
        mixes.append(Mix(name, requests))
    shared, constant = MIXES[len(DRAWN) :]
    mixes.append(Mix(shared, [continued(draw(SHARED)) for _ in range(REQUESTS)]))
    beginning = draw(CONSTANT)
    mixes.append(Mix(constant, [continued(beginning) for _ in range(REQUESTS)], beginning))
    return {mix.name: mix for mix in mixes}


def draw_lengths(count: int, mean: float, most: int, generator: torch.Generator) -> list[int]:
    """Log-normal with that mean (sigma 0.6), from 16 to `most` tokens."""
    drawn = torch.empty(count).log_normal_(math.log(mean) - 0.18, 0.6, generator=generator)
    return [int(min(most, max(16, x))) for x in drawn.tolist()]


def fill_lengths(tokens: int, mean: float, most: int, generator: torch.Generator) -> list[int]:
    """Lengths of that mix that add up to exactly `tokens`."""
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths += draw_lengths(1, mean, most, generator)
    lengths[-1] -= sum(lengths) - tokens
    return [length for length in lengths if length > 0]


def equal_lengths(tokens: int, length: int) -> list[int]:
    """Of `length` tokens each, the last one shorter where it must be."""
    whole, rest = divmod(tokens, length)
    return [length] * whole + [rest] * bool(rest)
