"""A model on the bench: plain and rotated, its matrices under each scheme, its reference answers.

Everything is made when first asked for and kept: about three copies of the model in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.architecture import Architecture
from engine.packed import PackedBatch, pack
from engine.quant.agreement import Agreement, Answers, answer, compare, exact_rows
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.preparation import Shelf, prepare, principal_axes
from engine.quant.rotation import rotate
from engine.quant.rows import Matrix
from engine.quant.schemes import ROTATED, Scheme
from engine.quant.texts import Text, first_tokens

CALIBRATION_TOKENS = 8192  # second moments of a few thousand columns; GPTQ wants not many more


@dataclass(frozen=True)
class Model:
    """What is studied: float32 tensors of the plain decoder and the head's rows [V, H]."""

    architecture: Architecture
    weights: Mapping[str, Tensor]
    head: Tensor


class Laboratory:
    """`calibrate`: texts for scales and rounding."""

    def __init__(self, model: Model, calibrate: Sequence[Text], say: Callable[[str], None]) -> None:
        self.model = model
        self._calibrate = first_tokens(calibrate, CALIBRATION_TOKENS)
        self._say = say
        # rotated or not -> weights, unrotate
        self._weights: dict[bool, tuple[Mapping[str, Tensor], Tensor | None]] = {}
        self._weights[False] = (model.weights, None)
        self._shelf: Shelf = {}
        self._rest: dict[bool, dict[Place, Matrix]] = {}
        self._references: dict[tuple[Text, ...], Answers] = {}

    def decoder(self, rotated: bool, carrier: torch.dtype = torch.float32) -> EmulatedDecoder:
        """`carrier`: what is stored between matrices; a device stores bf16."""
        if rotated and True not in self._weights:
            self._say("finding the axes of the residual stream")
            axes = principal_axes(self.decoder(False), *self._packed())
            found = rotate(self.model.weights, self.model.architecture, axes)
            self._weights[True] = (found.weights, found.unrotate)
        weights, unrotate = self._weights[rotated]
        return EmulatedDecoder(self.model.architecture, weights, unrotate, carrier)

    def prepare(self, schemes: Sequence[Scheme]) -> None:
        """Make the matrices of several schemes at once, which runs the calibration texts fewer times."""
        packed, exact = self._packed()
        for rotated in (False, True):
            wanted = [s for s in schemes if s not in self._shelf and (s in ROTATED) == rotated]
            if not wanted:
                continue
            self._say(f"calibrating {', '.join(wanted)}")
            made = prepare(self.decoder(rotated), packed, exact, list(dict.fromkeys(["bf16", *wanted])))
            self._rest.setdefault(rotated, made["bf16"])
            self._shelf |= {scheme: made[scheme] for scheme in wanted}

    def _packed(self) -> tuple[PackedBatch, Tensor | None]:
        packed = pack([text.ids for text in self._calibrate])
        return packed, exact_rows(self._calibrate, len(packed.input_ids))

    def rest(self, scheme: Scheme) -> dict[Place, Matrix]:
        """The bf16 matrices of a plan that mixes the scheme with bf16: of the same form, rotated or not."""
        self.prepare([scheme])
        return self._rest[scheme in ROTATED]

    def matrices(self, scheme: Scheme) -> dict[Place, Matrix]:
        self.prepare([scheme])
        return self._shelf[scheme]

    def reference(self, texts: Sequence[Text]) -> Answers:
        """float32's answers."""
        key = tuple(texts)
        if key not in self._references:
            self._references[key] = answer(self.decoder(False), self.model.head, texts, {})
        return self._references[key]

    def measure(
        self, texts: Sequence[Text], matrices: Mapping[Place, Matrix], *, rotated: bool,
        carrier: torch.dtype = torch.bfloat16, prefix: bool = True,
    ) -> Agreement:  # fmt: skip
        """A plan against float32. Places without a matrix are float32."""
        decoder = self.decoder(rotated, carrier)
        found = answer(decoder, self.model.head, texts, matrices, prefix=prefix)
        return compare(self.reference(texts), found, texts)
