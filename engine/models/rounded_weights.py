"""Layers of the portable path whose matrices were rounded elsewhere: a rotated decoder's, in int8, e4m3 or
bf16.

Done once, at build. Norms are folded into the matrices behind them, so theirs are ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.models.hopper_weights import Rounded
from engine.models.plan import HOPPER_MATRICES
from engine.models.small_vectors import store, vector
from engine.models.weights import MODULES
from engine.ops.hopper.weights import mix
from engine.ops.portable.integers import GROUP_ROWS, stored_columns
from engine.ops.portable.quantised import Quantise


def rounded_tensors(
    weights: Mapping[str, Tensor], index: int, rounded: Rounded | None, inputs: Mapping[str, Quantise]
) -> dict[str, Tensor]:
    """Tensors of layer `index` by the decoder's names. weights: the rotated decoder's; inputs: Plan.inputs.

    rounded: its 8-bit matrices, None where it has none; all others become bf16.
    """
    prefix = f"layers.{index}."
    made = {name: tensor.bfloat16() for name, tensor in weights.items() if name.startswith(prefix)}
    for kind, module in MODULES.items():
        matrix = None if rounded is None else rounded.matrices.get(HOPPER_MATRICES[kind])
        if rounded is None or matrix is None:
            continue
        name, values = f"{prefix}{module}", matrix.values
        if inputs[kind] == "blocks":
            values = values[:, stored_columns(values.shape[1]).to(values.device)]
        made |= {f"{name}.weight": values.contiguous(), f"{name}.weight_scales": store(matrix.scales)}
        if inputs[kind] in ("static", "heads"):
            factor = getattr(rounded.factors, HOPPER_MATRICES[kind])
            factor = torch.as_tensor(factor, dtype=torch.float32, device=values.device).reshape(-1)
            made[f"{name}.input_scales"] = store(factor if inputs[kind] == "heads" else 1.0 / factor)
    return made


def restore_int8(weight: Tensor, prepared: Mapping[str, Tensor], name: str) -> Tensor:
    """float32[N, K] that an int8 matrix `name` (layers.N.MODULE) stands for, inputs and outputs in logical
    order."""
    scales = vector(prepared[f"{name}.weight_scales"])
    wide: Tensor = weight.float() * scales.repeat_interleave(GROUP_ROWS)[: len(weight), None]
    if name.endswith(f".{MODULES['down']}"):
        order = stored_columns(weight.shape[1]).to(weight.device)
        return mix(wide[:, torch.argsort(order)])
    if name.endswith(f".{MODULES['output']}"):
        heads = vector(prepared[f"{name}.input_scales"])
        return wide * heads.repeat_interleave(weight.shape[1] // len(heads))
    return wide
