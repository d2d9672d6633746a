"""A beam search over an emulated decoder, and how far a plan's winners are from float32's.

One prompt at a time, on the CPU; float32 searches with the same code, so that only precision differs. A
prompt's leading tokens that `Text.prefix` counts stay in full precision, everything after them, the decode
steps too, goes through the plan's matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.beam.frontier import Rules
from engine.beam.search import Head, search
from engine.ops.beam_attention import beam_attention
from engine.ops.packed_attention import packed_attention
from engine.packed import pack
from engine.quant.agreement import exact_rows
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.rows import Matrix
from engine.quant.texts import Text

TOP = 10


@dataclass(frozen=True)
class Winners:
    """Best first: tokens of each sequence, and its score."""

    tokens: list[tuple[int, ...]]
    scores: list[float]


@dataclass(frozen=True)
class Ranks:
    """Means over prompts, against float32.

    winners: share of float32's W sequences that were found; top: of its first TOP among the first TOP found;
    best: share of prompts with the same first sequence; order: share of the pairs of common sequences that
    are in float32's order; score_shift: mean |difference| of a common sequence's score, a sum of D + 1
    log-probabilities.
    """

    prompts: int
    width: int
    steps: int
    winners: float
    top: float
    best: float
    order: float
    score_shift: float


class EmulatedBeams:
    """engine.beam.search.BeamModel over one prompt."""

    def __init__(
        self, decoder: EmulatedDecoder, matrices: Mapping[Place, Matrix], text: Text, width: int, steps: int
    ) -> None:
        self.slots = steps
        self._decoder, self._matrices, self._text = decoder, matrices, text
        a = decoder.architecture
        shape = (a.num_layers, steps, width, a.num_kv_heads, a.head_dim)
        self._suffix = torch.zeros(shape), torch.zeros(shape)
        self._prompt: list[tuple[Tensor, Tensor]] = []
        self._borders = torch.tensor([0, len(text.ids)], dtype=torch.int32)

    def prompt(self) -> Tensor:
        packed = pack([self._text.ids])
        length = len(self._text.ids)

        def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._prompt.append((k[:length], v[:length]))
            return packed_attention(q, k, v, packed.cu_seqlens, packed.max_seqlen)

        self._prompt.clear()
        exact = exact_rows([self._text], len(packed.input_ids))
        return self._decoder.run(packed, self._matrices, exact, attend)

    def step(self, tokens: Tensor, step: int, ancestors: Tensor) -> Tensor:
        length = len(self._text.ids)
        packed = pack([[token] for token in tokens.tolist()])
        packed = replace(packed, positions=torch.full_like(packed.positions, length + step))
        keys, values = self._suffix

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            suffix = keys[layer], values[layer]
            prompt, borders = self._prompt[layer], self._borders
            found = beam_attention(q, k, v, prompt, suffix, ancestors.contiguous(), borders, length)
            keys[layer, step], values[layer, step] = k, v
            return found

        return self._decoder.run(packed, self._matrices, None, attend)


def find_winners(
    decoder: EmulatedDecoder, head: Tensor, text: Text, matrices: Mapping[Place, Matrix], *, width: int,
    steps: int,
) -> Winners:  # fmt: skip
    """head float32[V, H], width >= 2: sequences of `steps` + 1 tokens, nothing ends earlier."""
    with torch.inference_mode():
        model = EmulatedBeams(decoder, matrices, text, width, steps)
        found = search(model, Head(head), Rules(width, torch.tensor([width]), None, None), steps)
    return Winners([tuple(row) for row in found.tokens[0].tolist()], found.scores[0].tolist())


def compare_ranks(reference: Sequence[Winners], found: Sequence[Winners]) -> Ranks:
    """Both of the same prompts, in the same order; at least one."""
    rows = [_compare(theirs, ours) for theirs, ours in zip(reference, found, strict=True)]
    winners, top, best, order, shift = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    first = reference[0].tokens
    return Ranks(len(rows), len(first), len(first[0]) - 1, winners, top, best, order, shift)


def _compare(theirs: Winners, ours: Winners) -> tuple[float, float, float, float, float]:
    places = {tokens: rank for rank, tokens in enumerate(ours.tokens)}
    common = [(rank, places[tokens]) for rank, tokens in enumerate(theirs.tokens) if tokens in places]
    top = min(TOP, len(theirs.tokens))
    shared_top = len(set(theirs.tokens[:top]) & set(ours.tokens[:top])) / top
    shifts = [abs(theirs.scores[rank] - ours.scores[place]) for rank, place in common]
    pairs = [(a[1] < b[1]) for i, a in enumerate(common) for b in common[i + 1 :]]
    return (
        len(common) / len(theirs.tokens),
        shared_top,
        float(theirs.tokens[0] == ours.tokens[0]),
        sum(pairs) / len(pairs) if pairs else 1.0,
        sum(shifts) / len(shifts) if shifts else 0.0,
    )
