"""Samples on which a build is measured: real words where there is a tokenizer, random ids, short and long.

Deterministic: the same checkpoint and bounds give the same samples.
"""

from __future__ import annotations

from typing import Any

import torch

_TEXTS = (
    "wireless noise cancelling headphones under 100",
    "Query: red running shoes size 42\nProduct: Men's lightweight road shoe, red/white, EU 42\nRelevant:",
    "Is the following product what the customer searched for? Answer yes or no.\n"
    "Customer: usb c to hdmi 4k 60hz\nProduct: Braided USB-C charging cable, 2 m, 100 W\nAnswer:",
    "größe 38 wanderschuhe damen wasserdicht, 登山靴, bottes de randonnée",
    "The quick brown fox jumps over the lazy dog. " * 6,
    '{"intent": "buy", "category": "kitchen", "price_max": 49.99}',
)
_MAX_TOKENS = 2048  # of all probes together: the reference runs each alone, in float32
_RANDOM_LENGTHS = (1, 2, 3, 7, 16, 33, 64, 127, 200, 256, 384, 512)


def probe_samples(
    tokenizer: Any | None, vocab_size: int, max_tokens: int, avoid: frozenset[int]
) -> list[list[int]]:
    """At least two samples of 1..max_tokens ids, the longest allowed included where that is affordable.

    Ids in `avoid` are left out of the random ones.
    """
    samples = [tokenizer(text)["input_ids"][:max_tokens] for text in _TEXTS] if tokenizer is not None else []
    samples = [sample for sample in samples if sample]
    generator = torch.Generator().manual_seed(0)
    lengths = [length for length in _RANDOM_LENGTHS if length < max_tokens] + [
        min(max_tokens, _MAX_TOKENS // 2)
    ]
    for length in lengths:
        ids = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        samples.append(
            [next(i for i in range(x, vocab_size + x) if i not in avoid) % vocab_size for x in ids]
        )
    kept, total = [], 0
    for sample in sorted(samples, key=len):
        if total + len(sample) <= _MAX_TOKENS:
            kept.append(sample)
            total += len(sample)
    return kept
