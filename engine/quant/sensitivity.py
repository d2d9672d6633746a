"""What each group of matrices costs in accuracy when it alone is in 8 bits and the rest is float32.

The stream before a group is computed once, so a measurement runs only the layers from it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.quant.agreement import Answers, answer, compare, exact_rows
from engine.quant.emulation import Batch, EmulatedDecoder, Place, Stream
from engine.quant.rows import Matrix
from engine.quant.schemes import KINDS
from engine.quant.texts import Text, batches


@dataclass(frozen=True)
class Sensitivity:
    """One kind of matrices in layers first..last."""

    kind: str
    first: int
    last: int
    next_token_kl: float
    label_shift: float | None

    @property
    def places(self) -> list[Place]:
        return [(layer, self.kind) for layer in range(self.first, self.last + 1)]


def measure_sensitivity(
    decoder: EmulatedDecoder, head: Tensor, texts: Sequence[Text], matrices: Mapping[Place, Matrix],
    *, layers_a_group: int, kinds: Sequence[str] = KINDS, say: Callable[[str], None] = lambda _: None,
) -> list[Sensitivity]:  # fmt: skip
    """For each kind and group of layers, with the 8-bit `matrices` of one plan."""
    num_layers = decoder.architecture.num_layers
    reference = answer(decoder, head, texts, {})
    found = []
    with torch.inference_mode():
        states: list[tuple[Stream, Batch]] = []
        for some, packed in batches(texts):
            states.append(decoder.begin(packed, exact_rows(some, len(packed.input_ids))))
        for first in range(0, num_layers, layers_a_group):
            last = min(first + layers_a_group, num_layers) - 1
            say(f"sensitivity of layers {first} to {last}")
            for kind in kinds:
                group = {(layer, kind): matrices[layer, kind] for layer in range(first, last + 1)}
                hidden = [_rest(decoder, stream, batch, first, group) for stream, batch in states]
                measured = compare(reference, Answers(torch.cat(hidden) @ head.T), texts)
                kl, shift = measured.next_token_kl, measured.label_shift
                found.append(Sensitivity(kind, first, last, kl, shift))
            for layer in range(first, last + 1):
                states = [(decoder.step(layer, stream, batch, {}), batch) for stream, batch in states]
    return found


def _rest(
    decoder: EmulatedDecoder, stream: Stream, batch: Batch, first: int, group: Mapping[Place, Matrix]
) -> Tensor:
    for layer in range(first, decoder.architecture.num_layers):
        stream = decoder.step(layer, stream, batch, group)
    return decoder.finish(stream, batch)
