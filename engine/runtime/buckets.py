"""Buckets: the sizes for which a CUDA lane holds a captured graph; a batch is padded up to the next one.

Token sizes grow by a sixteenth of their power of two: mean padding stays near 2%, the worst near 6%. Sample
sizes grow fourfold, since a sample without tokens costs an empty block, not a row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engine.packed import MIN_SAMPLES, BatchBounds

STEPS = 16  # token sizes between one power of two and the next
SMALLEST_TOKENS, TOKEN_STEP = 64, 32
SMALLEST_SAMPLES, SAMPLE_FACTOR = 16, 4


@dataclass(frozen=True, order=True)
class Bucket:
    tokens: int
    samples: int


@dataclass(frozen=True)
class Buckets:
    """`tokens` and `samples` ascending; the last of each is the bound."""

    tokens: tuple[int, ...]
    samples: tuple[int, ...]

    def choose(self, num_tokens: int, num_samples: int) -> Bucket:
        """The smallest bucket that holds both; ValueError over the bounds."""
        return Bucket(_next(self.tokens, num_tokens, "tokens"), _next(self.samples, num_samples, "samples"))

    def all(self) -> list[Bucket]:
        """Largest first, so that memory taken for one serves the next; none that no batch can need."""
        return [
            Bucket(tokens, samples)
            for tokens in reversed(self.tokens)
            for below, samples in reversed(list(zip((0, *self.samples), self.samples, strict=False)))
            if below < tokens  # else so many samples cannot have a token each
        ]


def make_buckets(bounds: BatchBounds) -> Buckets:
    """Buckets of an artifact's bounds."""
    most_tokens = max(bounds.tokens, MIN_SAMPLES)
    tokens, size = [], SMALLEST_TOKENS
    while size < most_tokens:
        tokens.append(size)
        size += max(TOKEN_STEP, (1 << (size.bit_length() - 1)) // STEPS)
    most_samples = max(bounds.samples, MIN_SAMPLES)
    samples, size = [], SMALLEST_SAMPLES
    while size < most_samples:
        samples.append(size)
        size *= SAMPLE_FACTOR
    return Buckets((*tokens, most_tokens), (*samples, most_samples))


def _next(sizes: Sequence[int], wanted: int, key: str) -> int:
    at = bisect_left(sizes, wanted)
    if at == len(sizes):
        raise ValueError(f"{key} = {wanted}: over the largest bucket, {sizes[-1]}")
    return sizes[at]
