"""e4m3 of a decoder as it is, nothing rotated: its weights rounded with compensation on calibration texts, as
engine.quant studies them. To nearest they lose half as much again.

In float32: a minute for a small model on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.build.emulation_device import CPU
from engine.models.architecture import Architecture
from engine.models.hopper_weights import Rounded
from engine.models.plan import HOPPER_MATRICES, Plan
from engine.models.weights import MODULES
from engine.ops.hopper.weights import Factors, RoundedMatrix
from engine.packed import pack
from engine.quant.agreement import exact_rows
from engine.quant.e4m3 import E4m3Matrix
from engine.quant.emulation import NORMS, EmulatedDecoder
from engine.quant.preparation import Prepared, prepare
from engine.quant.schemes import Scheme
from engine.quant.texts import Text


def compensate_e4m3(
    a: Architecture, weights: Mapping[str, Tensor], plan: Plan, texts: Sequence[Text],
    device: torch.device = CPU, made: Prepared | None = None,
) -> tuple[dict[str, Tensor], dict[int, Rounded]]:  # fmt: skip
    """weights: the plain decoder's -> float32, what its rounded matrices stand for, and ones for the norms
    that are folded into those; and the matrices themselves by layer, for prepare_weights. Computed on
    `device`, unless they are `made`: on the same texts."""
    scheme: Scheme = "e4m3_static" if plan.scaling == "static" else "e4m3_token"
    if made is not None and made.has("plain", {scheme}):
        shelf = made.shelf[scheme]
    else:
        wide = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()}
        packed = pack([text.ids for text in texts])
        exact = exact_rows(texts, len(packed.input_ids))
        shelf = prepare(EmulatedDecoder(a, wide), packed, exact, [scheme], "plain")[scheme]

    changed: dict[str, Tensor] = {}
    layers: dict[int, Rounded] = {}
    for index, layer in enumerate(plan.layers):
        matrices: dict[str, RoundedMatrix] = {}
        factors: dict[str, Any] = {}
        for kind, name in HOPPER_MATRICES.items():
            matrix = shelf[index, kind]
            if getattr(layer, kind) != "fp8" or not isinstance(matrix, E4m3Matrix):
                continue
            scale = torch.tensor([matrix.weight_scale], device=matrix.weight.device)
            matrices[name] = RoundedMatrix(matrix.weight, scale)
            changed[f"layers.{index}.{MODULES[kind]}.weight"] = matrix.weight.float() * matrix.weight_scale
            if kind in NORMS:
                changed[f"layers.{index}.{NORMS[kind]}.weight"] = torch.ones(a.hidden_size, device=device)
            if matrix.scale is not None:
                factors[name] = 1.0 / float(matrix.scale)
        if matrices:
            layers[index] = Rounded(matrices, Factors(**factors))
    return changed, layers
