"""From calibration texts to the matrices of every scheme that is asked for, a layer at a time.

The texts run through the float32 decoder once; what reaches a matrix is used and forgotten, so that the
second moments of only one matrix are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from engine.packed import PackedBatch
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.gptq import Compensation
from engine.quant.rows import STREAM, Matrix, Rows
from engine.quant.schemes import Form, Scheme, make_matrix, unserved

Shelf = dict[Scheme, dict[Place, Matrix]]


@dataclass(frozen=True)
class Prepared:
    """A decoder in one form, plain: as it was, and its matrices by scheme as calibration texts made them."""

    form: Form
    weights: Mapping[str, Tensor]
    unrotate: Tensor | None
    shelf: Shelf

    def has(self, form: Form, schemes: Set[Scheme]) -> bool:
        return self.form == form and schemes <= self.shelf.keys()


def prepare(
    decoder: EmulatedDecoder, packed: PackedBatch, exact: Tensor | None, schemes: Sequence[Scheme],
    form: Form | None = None, *, compensated: bool = True,
) -> Shelf:  # fmt: skip
    """`packed`: the calibration texts; `exact` bool[T]: tokens that no 8-bit matrix will see, left out.

    `form`: the decoder's. A kind that a scheme does not serve is made in bf16.
    """
    shelf: Shelf = {scheme: {} for scheme in schemes}
    heads = decoder.architecture.num_heads
    left_out = {scheme: unserved(scheme, decoder.architecture, form) for scheme in schemes}
    kept = None if exact is None else ~exact.to(decoder.device)

    def make(layer: int, kind: str, rows: Rows) -> None:
        place = (layer, kind)
        used = rows if kept is None else rows.take(kept)
        served: dict[Scheme, Scheme] = {each: "bf16" if kind in left_out[each] else each for each in schemes}
        # A checkpoint's own bf16 is rounded to nearest, as it was published; a rotated one is not that.
        careful = {each: compensated and (each != "bf16" or decoder.rotated) for each in served.values()}
        known = cache(lambda: Compensation(used.inputs.T @ used.inputs))
        weight = decoder.plain[place].weight
        made = {
            each: make_matrix(each, kind, weight, used, heads, compensated=careful[each], known=known)
            for each in careful
        }
        for scheme, theirs in served.items():
            shelf[scheme][place] = made[theirs]

    with torch.inference_mode():
        stream, batch = decoder.begin(packed)
        for layer in range(decoder.architecture.num_layers):
            stream = decoder.step(layer, stream, batch, {}, make)
    return shelf


def principal_axes(decoder: EmulatedDecoder, packed: PackedBatch, exact: Tensor | None) -> Tensor:
    """float64[H, H]: directions of the normed residual, columns, over all of the decoder's norms; the ones
    that most of it goes along first. `decoder`: the plain one."""
    size = decoder.architecture.hidden_size
    moments = torch.zeros(size, size, dtype=torch.float64, device=decoder.device)
    kept = None if exact is None else ~exact.to(decoder.device)

    def add(_layer: int, kind: str, rows: Rows) -> None:
        if kind in STREAM:
            inputs = (rows if kept is None else rows.take(kept)).inputs
            moments.add_((inputs.T @ inputs).double() / len(inputs))

    with torch.inference_mode():
        stream, batch = decoder.begin(packed)
        for layer in range(decoder.architecture.num_layers):
            stream = decoder.step(layer, stream, batch, {}, add)
    axes: Tensor = torch.linalg.eigh(moments).eigenvectors.flip(1)
    return axes
