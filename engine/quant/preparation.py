"""From calibration texts to the matrices of every scheme that is asked for, a layer at a time.

The texts run through the float32 decoder once; what reaches a matrix is used and forgotten, so that the
second moments of only one matrix are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.packed import PackedBatch
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.rows import STREAM, Matrix, Rows
from engine.quant.schemes import Scheme, make_matrix, unserved

Shelf = dict[Scheme, dict[Place, Matrix]]


def prepare(
    decoder: EmulatedDecoder, packed: PackedBatch, exact: Tensor | None, schemes: Sequence[Scheme],
    *, compensated: bool = True, say: Callable[[str], None] = lambda _: None,
) -> Shelf:  # fmt: skip
    """`packed`: the calibration texts; `exact` bool[T]: tokens that no 8-bit matrix will see, left out.

    A kind that a scheme does not serve is made in bf16.
    """
    shelf: Shelf = {scheme: {} for scheme in schemes}
    heads = decoder.architecture.num_heads
    left_out = {scheme: unserved(scheme, decoder.architecture) for scheme in schemes}

    def make(layer: int, kind: str, rows: Rows) -> None:
        place = (layer, kind)
        used = rows if exact is None else rows.take(~exact)
        for scheme in schemes:
            served: Scheme = "bf16" if kind in left_out[scheme] else scheme
            # A checkpoint's own bf16 is rounded to nearest, as it was published; a rotated one is not that.
            careful = compensated and (scheme != "bf16" or decoder.rotated)
            shelf[scheme][place] = make_matrix(
                served, kind, decoder.plain[place].weight, used, heads, compensated=careful
            )

    with torch.inference_mode():
        stream, batch = decoder.begin(packed)
        for layer in range(decoder.architecture.num_layers):
            say(f"layer {layer + 1} of {decoder.architecture.num_layers}")
            stream = decoder.step(layer, stream, batch, {}, make)
    return shelf


def principal_axes(decoder: EmulatedDecoder, packed: PackedBatch, exact: Tensor | None) -> Tensor:
    """float64[H, H]: directions of the normed residual, columns, over all of the decoder's norms; the ones
    that most of it goes along first. `decoder`: the plain one."""
    size = decoder.architecture.hidden_size
    moments = torch.zeros(size, size, dtype=torch.float64)

    def add(_layer: int, kind: str, rows: Rows) -> None:
        if kind in STREAM:
            inputs = (rows if exact is None else rows.take(~exact)).inputs
            moments.add_((inputs.T @ inputs).double() / len(inputs))

    with torch.inference_mode():
        stream, batch = decoder.begin(packed)
        for layer in range(decoder.architecture.num_layers):
            stream = decoder.step(layer, stream, batch, {}, add)
    axes: Tensor = torch.linalg.eigh(moments).eigenvectors.flip(1)
    return axes
