"""A beam search over an emulated decoder, to see how far a plan's winners are from float32's.

One prompt at a time, on the CPU; float32 searches with the same code, so that only precision differs. A
prompt's leading tokens that `Text.prefix` counts stay in full precision, everything after them, the decode
steps too, goes through the plan's matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.beam.frontier import Rules
from engine.beam.head_weight import HeadWeight
from engine.beam.search import SearchPlan, search
from engine.ops.beam_attention import beam_attention
from engine.ops.packed_attention import packed_attention
from engine.packed import pack
from engine.quant.agreement import exact_rows
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.ranks import Winners
from engine.quant.rows import Matrix
from engine.quant.texts import Text


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
        packed = replace(packed, token_positions=np.full_like(packed.token_positions, length + step))
        keys, values = self._suffix

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            suffix = keys[layer], values[layer]
            prompt, borders = self._prompt[layer], self._borders
            found = beam_attention(q, k, v, prompt, suffix, ancestors.contiguous(), borders, length)
            keys[layer, step], values[layer, step] = k, v
            return found

        return self._decoder.run(packed, self._matrices, None, attend)


def find_winners(
    decoder: EmulatedDecoder, head: HeadWeight, text: Text, matrices: Mapping[Place, Matrix], *, width: int,
    steps: int,
) -> Winners:  # fmt: skip
    """head: over float32[V, H], width >= 2: sequences of `steps` + 1 tokens, nothing ends earlier."""
    with torch.inference_mode():
        model = EmulatedBeams(decoder, matrices, text, width, steps)
        found = search(
            model, head.of(SearchPlan(steps)), Rules(width, torch.tensor([width]), None, None), steps
        )
    return Winners([tuple(row) for row in found.tokens[0].tolist()], found.scores[0].tolist())
