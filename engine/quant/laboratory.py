"""A model on the bench: in each form, its matrices under each scheme, its reference answers.

Everything is made when first asked for and kept: about eight copies of the model in float32
where all schemes are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.beam.head_weight import HeadWeight, narrow_head
from engine.models.architecture import Architecture
from engine.packed import PackedBatch, pack
from engine.quant.agreement import Agreement, Answers, answer, compare, exact_rows
from engine.quant.beams import find_winners
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.preparation import Prepared, Shelf, prepare, principal_axes
from engine.quant.ranks import Winners, compare_ranks
from engine.quant.rotation import rotate
from engine.quant.rows import Matrix
from engine.quant.schemes import Form, Scheme, whole_form
from engine.quant.serving import Serving
from engine.quant.texts import Text, spread

SEARCHES = 8  # prompts to search from in one measurement: at 100 beams of 5 tokens half a minute of a CPU
MOST_WIDTH, MOST_STEPS = 100, 4
WHOLE = Serving()
CALIBRATION_TOKENS = 8192  # second moments of a few thousand columns; GPTQ wants not many more


@dataclass(frozen=True)
class Model:
    """What is studied: float32 tensors of the plain decoder and the head's rows [V, H]."""

    architecture: Architecture
    weights: Mapping[str, Tensor]
    head: Tensor


class Laboratory:
    """`calibrate`: texts for scales and rounding."""

    def __init__(
        self, model: Model, calibrate: Sequence[Text], say: Callable[[str], None], serving: Serving = WHOLE
    ) -> None:
        self.model, self.serving = model, serving
        self._heads = {False: HeadWeight(model.head), True: HeadWeight(model.head)}
        if serving.narrow_head and (narrow := narrow_head(model.head)) is not None:
            self._heads[True] = HeadWeight(model.head.bfloat16(), *narrow)  # as it is served
        self._calibrate = spread(calibrate, CALIBRATION_TOKENS)
        self._say = say
        # weights, unrotate
        self._weights: dict[Form, tuple[Mapping[str, Tensor], Tensor | None]] = {}
        self._weights["plain"] = (model.weights, None)
        self._shelves: dict[Form, Shelf] = {"plain": {}, "heads": {}, "stream": {}}
        self._winners: dict[Text, Winners] = {}
        self._references: dict[tuple[Text, ...], Answers] = {}

    def decoder(self, form: Form, carrier: torch.dtype = torch.float32) -> EmulatedDecoder:
        """`carrier`: what is stored between matrices; a device stores bf16."""
        if form not in self._weights:
            self._weights[form] = self._rotate(form)
        weights, unrotate = self._weights[form]
        return EmulatedDecoder(self.model.architecture, weights, unrotate, carrier)

    def _rotate(self, form: Form) -> tuple[Mapping[str, Tensor], Tensor]:
        axes = None
        if form == "stream":
            self._say("finding the axes of the residual stream")
            axes = principal_axes(self.decoder("plain"), *self._packed())
        found = rotate(self.model.weights, self.model.architecture, axes, still=form == "heads")
        return found.weights, found.unrotate

    def prepare(self, form: Form, schemes: Sequence[Scheme]) -> None:
        """Make the matrices of several schemes at once, which runs the calibration texts fewer times."""
        shelf = self._shelves[form]
        wanted: list[Scheme] = [each for each in dict.fromkeys(["bf16", *schemes]) if each not in shelf]
        if wanted:
            decoder = self.decoder(form)
            self._say(f"calibrating {', '.join(wanted)}" + ("" if form == "plain" else f", {form} rotated"))
            shelf |= prepare(decoder, *self._packed(), wanted, form)

    def _packed(self) -> tuple[PackedBatch, Tensor | None]:
        packed = pack([text.ids for text in self._calibrate])
        return packed, exact_rows(self._calibrate, len(packed.input_ids))

    def matrices(self, scheme: Scheme, form: Form | None = None) -> dict[Place, Matrix]:
        """`form`: the scheme's own where None."""
        form = form or whole_form(scheme)
        self.prepare(form, [scheme])
        shelf = self._shelves[form]
        kept = {place: matrix for place, matrix in shelf[scheme].items() if place[1] in self.serving.kinds}
        return shelf["bf16"] | kept

    def hand_over(self, form: Form) -> Prepared:
        """What was made in that form, for whoever builds of it."""
        self.decoder(form)
        return Prepared(form, *self._weights[form], self._shelves[form])

    def reference(self, texts: Sequence[Text]) -> Answers:
        """float32's answers."""
        key = tuple(texts)
        if key not in self._references:
            self._references[key] = answer(self.decoder("plain"), self.model.head, texts, {})
        return self._references[key]

    def measure(
        self, texts: Sequence[Text], matrices: Mapping[Place, Matrix], *, form: Form,
        carrier: torch.dtype = torch.bfloat16, prefix: bool = True, narrow_head: bool = False,
    ) -> Agreement:  # fmt: skip
        """A plan against float32. Places without a matrix are float32. Of texts whose pipeline searches, the
        first few are searched from too; `narrow_head`: with the head in e4m3."""
        decoder = self.decoder(form, carrier)
        found = answer(decoder, self.model.head, texts, matrices, prefix=prefix)
        agreement = compare(self.reference(texts), found, texts)
        prompts = [text for text in texts if text.search is not None][:SEARCHES]
        if not prompts:
            return agreement
        for text in prompts:
            if text not in self._winners:
                self._winners[text] = search_from(self.decoder("plain"), self._heads[False], text, {})
        expected = [self._winners[text] for text in prompts]
        prompts = prompts if prefix else [replace(text, prefix=0) for text in prompts]
        ours = [search_from(decoder, self._heads[narrow_head], text, matrices) for text in prompts]
        return replace(agreement, ranks=compare_ranks(expected, ours))


def search_from(
    decoder: EmulatedDecoder, head: HeadWeight, text: Text, matrices: Mapping[Place, Matrix]
) -> Winners:
    """As far as its pipeline searches, within what an emulation can bear."""
    assert text.search is not None
    width, steps = text.search
    width, steps = max(2, min(width, MOST_WIDTH)), min(steps, MOST_STEPS)
    return find_winners(decoder, head, text, matrices, width=width, steps=steps)
