"""The samples of `bench engine`: requests of token ids with uneven lengths, the same on every run.

Lengths are log-normal with a median of 60 tokens (relevance prompts of a query and a title, a few with a long
description), cut at 256; ids are uniform over the vocabulary, which costs a model the same as real text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MEDIAN_TOKENS = 60
SIGMA = 0.5  # of the logarithm: mean 68, 95th percentile 137
MIN_TOKENS, MAX_TOKENS = 4, 256


@dataclass(frozen=True)
class TokenSample:
    """A sample as the engine takes it (engine.values.Sample)."""

    token_ids: tuple[int, ...]
    text: None = None
    fields: None = None


Request = tuple[TokenSample, ...]


def make_requests(num_requests: int, samples_each: int, vocabulary: int, seed: int) -> list[Request]:
    """`num_requests` requests of `samples_each` samples; the same seed gives the same requests."""
    random = np.random.default_rng(seed)
    drawn = random.lognormal(np.log(MEDIAN_TOKENS), SIGMA, (num_requests, samples_each))
    lengths = np.clip(np.rint(drawn), MIN_TOKENS, MAX_TOKENS).astype(int)
    return [
        tuple(TokenSample(tuple(random.integers(0, vocabulary, length).tolist())) for length in row)
        for row in lengths
    ]


def num_tokens(requests: list[Request]) -> int:
    """Tokens of all samples; no padding, there is none."""
    return sum(len(sample.token_ids) for request in requests for sample in request)
