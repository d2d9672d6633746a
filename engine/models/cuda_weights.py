"""A decoder's tensors made ready for CUDA: quantised as the plan says, rotary tables, scales of activations.

Names are the eager decoder's; a quantised matrix adds `weight_scales` and, where scales are known beforehand,
`input_scales`, float32[1, 1] each in e4m3. A hopper layer's tensors give way to those of hopper_weights;
rotary frequencies to tables of every position that the bounds allow.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.models.architecture import Architecture
from engine.models.hopper_layers import COS as HOPPER_COS
from engine.models.hopper_layers import SIN as HOPPER_SIN
from engine.models.hopper_weights import Rounded, hopper_tables, hopper_tensors, is_hopper, restore_hopper
from engine.models.plan import HOPPER_MATRICES, MATRICES, Plan
from engine.models.rounded_weights import restore_int8, rounded_tensors
from engine.models.small_vectors import store
from engine.models.weights import INV_FREQ, MODULES
from engine.ops.portable.linear import quantise_weight

COS, SIN = "rope_cos", "rope_sin"
UNROTATE = "unrotate"  # float32[H, H] of a rotated plan, for the normed rows; the final norm is in it
OF_NO_LAYER = (COS, SIN, HOPPER_COS, HOPPER_SIN, UNROTATE)  # what the eager decoder has not
# matrix of a plan -> its module in the eager decoder
assert tuple(MODULES) == MATRICES


def prepare_weights(
    weights: Mapping[str, Tensor],
    architecture: Architecture,
    plan: Plan,
    *,
    max_seqlen: int,
    input_scales: Mapping[str, float] | None = None,
    rounded: Mapping[int, Rounded] | None = None,
) -> dict[str, Tensor]:
    """The eager decoder's tensors -> the CUDA decoder's, on the device where they are.

    `input_scales`: module name -> scale of its input (value = q * scale), for every quantised matrix of a
    static plan. `rounded`: 8-bit matrices that were rounded elsewhere, all of a rotated plan's. ConfigError
    names a scale that is missing.
    """
    rounded = rounded or {}
    replaced = tuple(f"layers.{i}." for i, layer in enumerate(plan.layers) if layer.path == "hopper")
    prepared = {
        name: tensor for name, tensor in weights.items() if name != INV_FREQ and not name.startswith(replaced)
    }
    prepared |= _rope_tables(weights[INV_FREQ], architecture.rope.scaling, max_seqlen)
    if replaced:
        prepared |= hopper_tables(weights[INV_FREQ], architecture.rope.scaling, max_seqlen)
        prepared |= hopper_tensors(weights, architecture, plan, input_scales, rounded)
    for index, layer in enumerate(plan.layers):
        if layer.path == "hopper":
            continue
        if plan.rotated:
            prepared |= rounded_tensors(weights, index, rounded.get(index), plan.inputs(index))
            continue
        for matrix, module in MODULES.items():
            if getattr(layer, matrix) != "fp8":
                continue
            name = f"layers.{index}.{module}"
            given = rounded[index].matrices.get(HOPPER_MATRICES[matrix]) if index in rounded else None
            values, scale_of_weight = (
                quantise_weight(weights[f"{name}.weight"]) if given is None else (given.values, given.scales)
            )
            prepared[f"{name}.weight"], prepared[f"{name}.weight_scales"] = values, store(scale_of_weight)
            if plan.scaling == "static":
                scale = (input_scales or {}).get(name)
                if scale is None or scale <= 0:
                    raise ConfigError(
                        f"input_scales.{name}", scale, "a static plan needs a positive scale here"
                    )
                prepared[f"{name}.input_scales"] = store(
                    torch.tensor([scale], dtype=torch.float32, device=values.device)
                )
    return prepared


def restore_weights(prepared: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The eager decoder's tensors in bfloat16 out of the CUDA decoder's; of a quantised matrix those that its
    8-bit values stand for. A rotated plan's stay rotated: their keys and values are the same."""
    hopper = [index for index in range(architecture.num_layers) if is_hopper(prepared, index)]
    skipped = (*(f"layers.{index}." for index in hopper), *OF_NO_LAYER)
    restored: dict[str, Tensor] = {}
    for name, tensor in prepared.items():
        if name.startswith(skipped) or name.endswith((".weight_scales", ".input_scales")):
            continue
        scale = prepared.get(f"{name}_scales")
        if tensor.dtype == torch.int8:
            restored[name] = restore_int8(tensor, prepared, name.removesuffix(".weight")).bfloat16()
            continue
        restored[name] = tensor if scale is None else (tensor.float() * scale).bfloat16()
    for index in hopper:
        restored |= restore_hopper(prepared, architecture, index)
    device = prepared[COS].device
    return restored | {INV_FREQ: torch.tensor(architecture.rope.inv_freq, device=device)}


def _rope_tables(inv_freq: Tensor, scaling: float, max_seqlen: int) -> dict[str, Tensor]:
    """float32[max_seqlen, head_dim / 2] each."""
    angle = torch.arange(max_seqlen, device=inv_freq.device).float()[:, None] * inv_freq.float()
    return {COS: angle.cos() * scaling, SIN: angle.sin() * scaling}
