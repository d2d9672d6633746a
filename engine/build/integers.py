"""The int8 half of a build: the decoder rotated, its matrices rounded on calibration texts, by layer as the
kernels take them.

All in float32, by engine.quant: minutes for a small model on a CPU. Without texts of the user's own, weights
are rounded to nearest and channels rotated as they are: random tokens say nothing about either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.build.emulation_device import CPU
from engine.models.architecture import Architecture
from engine.models.hopper_weights import Rounded
from engine.models.plan import HOPPER_MATRICES, LayerPlan, Plan, Precision
from engine.models.weights import MODULES
from engine.ops.hopper.weights import Factors, RoundedMatrix
from engine.packed import pack
from engine.quant.agreement import exact_rows
from engine.quant.e4m3 import E4m3Matrix
from engine.quant.emulation import EmulatedDecoder, Place
from engine.quant.floats import Bf16Matrix
from engine.quant.int8 import ROWS_A_SCALE, ExactRows, Int8Matrix, PredictedRows, StaticHeads
from engine.quant.integers import LARGEST
from engine.quant.preparation import Prepared, prepare, principal_axes
from engine.quant.rotation import rotate
from engine.quant.rows import Matrix
from engine.quant.schemes import Form, Scheme
from engine.quant.texts import Text

SCHEMES: dict[Precision, Scheme] = {"bf16": "bf16", "fp8": "e4m3_static", "int8": "int8"}


@dataclass(frozen=True)
class Integers:
    """`weights`: the rotated decoder's, bf16 matrices rounded; `layers`: those with 8-bit matrices; `plan`
    with what calibration decided."""

    plan: Plan
    weights: dict[str, Tensor]
    unrotate: Tensor
    layers: dict[int, Rounded]


def round_decoder(
    architecture: Architecture,
    weights: Mapping[str, Tensor],
    plan: Plan,
    texts: Sequence[Text],
    *,
    trusted: bool,
    say: Callable[[str], None],
    form: Form = "stream",
    device: torch.device = CPU,
) -> Integers:
    """weights: the plain decoder's; texts: to calibrate on, `trusted` where the user gave them; form: what is
    rotated, "heads" alone where no matrix that reads the stream is int8. Computed on `device`, which keeps
    the tensors that are returned.
    """
    wide = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()}
    packed = pack([text.ids for text in texts])
    exact = exact_rows(texts, len(packed.input_ids))
    axes = None
    if trusted and form == "stream":
        say("finding the axes of the residual stream")
        axes = principal_axes(EmulatedDecoder(architecture, wide), packed, exact)
    found = rotate(wide, architecture, axes, still=form == "heads")
    decoder = EmulatedDecoder(architecture, found.weights, found.unrotate)
    say("rounding matrices")
    shelf = prepare(decoder, packed, exact, sorted(_wanted(plan)), form, compensated=trusted)
    made = take_rounded(plan, Prepared(form, found.weights, found.unrotate, shelf), form)
    assert made is not None
    return made


def take_rounded(plan: Plan, made: Prepared | None, form: Form) -> Integers | None:
    """A plan's matrices out of what a study has made, or None where that has not all of them in this form."""
    if made is None or made.unrotate is None or not made.has(form, _wanted(plan)):
        return None
    rotated, layers, planned = dict(made.weights), {}, []
    for index, layer in enumerate(plan.layers):
        matrices: dict[str, Matrix] = {}
        for kind in HOPPER_MATRICES:
            place: Place = (index, kind)
            matrix = matrices[kind] = made.shelf[_scheme(layer, kind)][place]
            if isinstance(matrix, Bf16Matrix):
                rotated[f"layers.{index}.{MODULES[kind]}.weight"] = matrix.weight
        rounded = _by_kernels(matrices)
        if rounded.matrices:
            layers[index] = rounded
        uneven = [kind for kind in ("qkv", "gate_up") if getattr(rounded.factors, kind) is None]
        planned.append(replace(layer, exact=tuple(uneven)))
    return Integers(replace(plan, layers=tuple(planned)), rotated, made.unrotate, layers)


def _wanted(plan: Plan) -> set[Scheme]:
    return {_scheme(layer, kind) for layer in plan.layers for kind in HOPPER_MATRICES}


def _scheme(layer: LayerPlan, kind: str) -> Scheme:
    """The portable path's norm has whole rows before it: nothing is predicted."""
    scheme = SCHEMES[getattr(layer, kind)]
    return "int8_exact" if scheme == "int8" and layer.path == "portable" else scheme


def _by_kernels(matrices: Mapping[str, Matrix]) -> Rounded:
    factors: dict[str, Any] = {}
    integers: dict[str, RoundedMatrix] = {}
    for kind, name in HOPPER_MATRICES.items():
        matrix = matrices[kind]
        if isinstance(matrix, E4m3Matrix) and matrix.scale is not None:
            integers[name] = RoundedMatrix(matrix.weight, _one(matrix))
            factors[name] = 1.0 / float(matrix.scale)
        if not isinstance(matrix, Int8Matrix):
            continue
        integers[name] = RoundedMatrix(matrix.weight, matrix.weight_scale[::ROWS_A_SCALE].contiguous())
        rule = matrix.rule
        if isinstance(rule, PredictedRows):
            factors[name] = LARGEST / rule.width
        elif isinstance(rule, ExactRows):
            factors[name] = None
        elif isinstance(rule, StaticHeads):
            factors[name] = 1.0 / rule.scales.cpu()
    return Rounded(integers, Factors(**factors))


def _one(matrix: E4m3Matrix) -> Tensor:
    """float32[1]: its scale."""
    return torch.tensor([matrix.weight_scale], device=matrix.weight.device)


def on_device(rounded: Mapping[int, Rounded], device: torch.device) -> dict[int, Rounded]:
    """The same, its matrices there, as tensors that may be exported."""
    return {
        index: Rounded(
            {
                name: RoundedMatrix(put(each.values, device), put(each.scales, device))
                for name, each in layer.matrices.items()
            },
            layer.factors,
        )
        for index, layer in rounded.items()
    }


def put(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, and none that inference mode made: torch.export may not take such."""
    there = tensor.to(device)
    return there.clone() if there.is_inference() else there
