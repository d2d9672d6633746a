"""What a search computes that is of use, and the prompts that it is measured with.

Useful FLOPs of one request, W beams, D steps, a prompt of L tokens: L + W D rows through the layers' matrices
(of the prompt's last layer, past attention, one), 1 + W D rows of the head, and attention's pairs. A prompt
counts once for all its beams; padding counts nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from engine.beam.legal import LegalTensors
from engine.beam.trie import compile_trie
from engine.models.architecture import Architecture
from tools.bench.mixes import draw_lengths
from tools.bench.shapes import Work, count_work

MIXES = {"short": (60.0, 256), "long": (300.0, 512)}  # tokens of a prompt: mean (log-normal), most
PROMPTS = 256  # drawn of a mix; loops take them in turns


def draw_prompts(mix: str, vocab_size: int, count: int = PROMPTS) -> list[list[int]]:
    """Deterministic; token ids are uniform, which costs a model the same as real text."""
    generator = torch.Generator().manual_seed(2)
    lengths = draw_lengths(count, *MIXES[mix], generator)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def draw_items(count: int, length: int, vocab_size: int) -> LegalTensors:
    """Random sequences of semantic ids: each level has a range of the vocabulary of its own."""
    codes = min(8192, vocab_size // length)
    drawn = np.random.default_rng(4).integers(0, codes, (count, length), dtype=np.int32)
    drawn += np.arange(length, dtype=np.int32) * codes
    return compile_trie(drawn, vocab_size)[0].tensors()


def count_steps(a: Architecture, lengths: Sequence[int], width: int, steps: int) -> Work:
    """Of the decode steps of searches over prompts of these lengths; without the head."""
    rows = len(lengths) * width * steps
    pairs = width * sum(length + slot + 1 for length in lengths for slot in range(steps))
    return Work(
        qkv=2 * a.hidden_size * (a.q_width + 2 * a.kv_width) * a.num_layers * rows,
        output=2 * a.hidden_size * a.q_width * a.num_layers * rows,
        gate_up=4 * a.hidden_size * a.intermediate_size * a.num_layers * rows,
        down=2 * a.hidden_size * a.intermediate_size * a.num_layers * rows,
        attention=a.num_layers * 4 * a.q_width * pairs,
    )


def count_flops(
    a: Architecture, lengths: Sequence[int], width: int, steps: int, narrow: Mapping[str, float],
    narrow_head: bool,
) -> tuple[float, float]:  # fmt: skip
    """All of them, and those in 8 bits; `narrow` as shapes.narrow_matrices."""
    works = count_work(a, lengths), count_steps(a, lengths, width, steps)
    head = 2.0 * a.hidden_size * a.vocab_size * len(lengths) * (1 + width * steps)
    total = sum(work.flops for work in works) + head
    return total, sum(work.in_8_bits(narrow) for work in works) + head * narrow_head
