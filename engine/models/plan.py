"""Which operation and which precision serve each step of a CUDA decoder: decided at build, kept in the
manifest.

A plan is data: the decoder is built from it without a question about the model's name. A layer takes one of
two paths: "hopper" (engine.ops.hopper, compute capability 9.0 alone) where those kernels serve it, else
"portable". `notes` says what was asked for and cannot be served, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Literal

import torch

from engine.errors import ConfigError
from engine.models.architecture import Architecture
from engine.ops.hopper import plan as work_list
from engine.ops.hopper.supports import LayerShape, refuses_int8, unsupported
from engine.ops.portable.attention import HEAD_DIMS
from engine.ops.portable.gate_up_tiles import serves_gate_up
from engine.ops.portable.quantised import Quantise
from engine.packed import BatchBounds

Precision = Literal["bf16", "fp8", "int8"]
Scaling = Literal["static", "token"]
KernelPath = Literal["portable", "hopper"]
MATRICES = ("qkv", "output", "gate_up", "down")
HOPPER_MATRICES = {
    "qkv": "qkv",
    "output": "o",
    "gate_up": "gate_up",
    "down": "down",
}  # as engine.ops.hopper says
ELEMENTS = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
FIRST_E4M3 = 89  # sm_89; 8-bit tensor cores before it are int8 only
FIRST_ARCH = 80
# What an int8 matrix of the portable path takes: the norm sees whole rows, so their own scale costs nothing
INT8_INPUTS: dict[str, Quantise] = {
    "qkv": "rows", "output": "heads", "gate_up": "rows", "down": "blocks",
}  # fmt: skip


@dataclass(frozen=True)
class LayerPlan:
    """Precision of each matrix; fused_gate_up, of the portable path: projection, gate and quantisation in one
    kernel. exact: int8 matrices whose inputs want the scale of each row itself, not the predicted one."""

    qkv: Precision
    output: Precision
    gate_up: Precision
    down: Precision
    fused_gate_up: bool
    path: KernelPath = "portable"
    exact: tuple[str, ...] = ()

    def elements(self) -> dict[str, torch.dtype]:
        """Element type of each matrix, under the names of engine.ops.hopper."""
        return {theirs: ELEMENTS[getattr(self, ours)] for ours, theirs in HOPPER_MATRICES.items()}

    def inputs(self, scaling: Scaling, *, rotated: bool) -> dict[str, Quantise]:
        """How the input of each matrix is quantised on the portable path, in a plan of these."""

        def quantise(matrix: str, precision: Precision) -> Quantise:
            if precision == "bf16":
                return "none"
            if precision == "int8":
                return INT8_INPUTS[matrix]
            # static scales of a rotated stream are of its raw rows; here the norm makes each row its own
            return "token" if rotated and matrix in ("qkv", "gate_up") else scaling

        return {matrix: quantise(matrix, getattr(self, matrix)) for matrix in MATRICES}


@dataclass(frozen=True)
class Plan:
    """`scaling` of quantised activations: one scale a tensor from calibration, or one a token as they are
    made. `library`: digest of the compiled kernels that hopper layers call. `rotated`: the residual stream
    and the heads are (engine.quant.rotation), as int8 wants them."""

    layers: tuple[LayerPlan, ...]
    scaling: Scaling
    notes: tuple[str, ...] = ()
    library: str | None = None
    rotated: bool = False

    @property
    def quantises(self) -> bool:
        return any(getattr(layer, matrix) != "bf16" for layer in self.layers for matrix in MATRICES)

    def inputs(self, index: int) -> dict[str, Quantise]:
        """How the input of each matrix of a portable layer is quantised."""
        return self.layers[index].inputs(self.scaling, rotated=self.rotated)

    def runs(self) -> list[tuple[KernelPath, range]]:
        """Consecutive layers of one path, in order."""
        found: list[tuple[KernelPath, range]] = []
        for path, indices in groupby(range(len(self.layers)), lambda index: self.layers[index].path):
            run = list(indices)
            found.append((path, range(run[0], run[-1] + 1)))
        return found

    def to_manifest(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_manifest(cls, values: dict[str, Any]) -> Plan:
        layers = tuple(
            LayerPlan(**(layer | {"exact": tuple(layer.get("exact", ()))})) for layer in values["layers"]
        )
        rotated = values.get("rotated", False)
        return cls(layers, values["scaling"], tuple(values["notes"]), values.get("library"), rotated)


@dataclass(frozen=True)
class HopperKernels:
    """The compiled library's digest, or None and the reason why there is none."""

    library: str | None
    reason: str = ""


NO_KERNELS = HopperKernels(None, "none were compiled")


def layer_shape(a: Architecture) -> LayerShape:
    """A layer's sizes as engine.ops.hopper asks for them."""
    return LayerShape(
        hidden=a.hidden_size, intermediate=a.intermediate_size, num_q=a.num_heads, num_kv=a.num_kv_heads,
        head_dim=a.head_dim, bias=a.qkv_bias, head_norm=a.qk_norm, eps=a.norm_eps,
        output_bias=a.output_bias or a.mlp_bias,
    )  # fmt: skip


def choose_plan(
    architecture: Architecture,
    precision: Precision,
    *,
    arch: int,
    static: bool,
    kernels: HopperKernels = NO_KERNELS,
    bounds: BatchBounds | None = None,
) -> Plan:
    """The plan for a device of capability `arch` (sm_90: 90); `static` where calibration gave scales.

    ConfigError for a device or a head size that no CUDA operation here takes.
    """
    a = architecture
    if arch < FIRST_ARCH:
        raise ConfigError("device", f"sm_{arch}", f"CUDA packages need sm_{FIRST_ARCH} or later")
    if a.head_dim not in HEAD_DIMS:
        raise ConfigError("head_dim", a.head_dim, f"CUDA attention serves {HEAD_DIMS}")
    notes: list[str] = []
    if precision == "fp8" and arch < FIRST_E4M3:
        notes.append(f"sm_{arch} has no e4m3 tensor cores: every matrix stays bf16")
        precision = "bf16"
    layer = _choose_precision(a, precision, notes)
    layers = [_choose_path(a, layer, static, arch, kernels, bounds) for _ in range(a.num_layers)]
    notes += _explain_paths([reason for _, reason in layers])
    if not layer.fused_gate_up and any(chosen.path == "portable" for chosen, _ in layers):
        notes.append(f"gate_up {a.hidden_size} -> 2 x {a.intermediate_size}: projection and gate run apart")
    library = kernels.library if any(chosen.path == "hopper" for chosen, _ in layers) else None
    scaling: Scaling = "static" if static else "token"
    planned = tuple(chosen for chosen, _ in layers)
    if precision == "int8" and not any(torch.int8 in each.elements().values() for each in planned):
        notes.append("int8: no matrix can be in it; every one stays bf16")
    rotated = any(torch.int8 in each.elements().values() for each in planned)
    return Plan(planned, scaling, tuple(notes), library, rotated)


def _choose_precision(a: Architecture, precision: Precision, notes: list[str]) -> LayerPlan:
    widths = {"qkv": (a.q_width + 2 * a.kv_width, a.hidden_size), "output": (a.hidden_size, a.q_width)}
    widths |= {
        "gate_up": (2 * a.intermediate_size, a.hidden_size),
        "down": (a.hidden_size, a.intermediate_size),
    }
    chosen: dict[str, Any] = {}
    for matrix, shape in widths.items():
        reason = None if all(width % 16 == 0 for width in shape) else "not multiples of 16"
        if precision == "int8" and reason is None:
            reason = refuses_int8(matrix, a.intermediate_size)
        if precision != "bf16" and reason is not None:
            notes.append(f"{matrix} {shape[0]} x {shape[1]}: {reason}, stays bf16")
        chosen[matrix] = precision if reason is None else "bf16"
    return LayerPlan(**chosen, fused_gate_up=serves_gate_up(a.hidden_size, a.intermediate_size, a.mlp_bias))


def _choose_path(
    a: Architecture, layer: LayerPlan, static: bool, arch: int, kernels: HopperKernels,
    bounds: BatchBounds | None,
) -> tuple[LayerPlan, str | None]:  # fmt: skip
    """The layer with its path, and why it is not the hopper one."""
    reason = unsupported(layer_shape(a), layer.elements(), divmod(arch, 10))
    if reason is None and not static and torch.float8_e4m3fn in layer.elements().values():
        reason = "8-bit activations scaled per token; the kernels know static scales"
    if reason is None and bounds is not None:
        for key, value, most in (
            ("samples", bounds.segments + 1, work_list.MAX_SAMPLES),
            ("tokens_per_sample", bounds.tokens_per_sample, work_list.MAX_SAMPLE_TOKENS),
        ):
            if value > most:
                reason = f"bounds.{key} is over {most}"
    if reason is None and kernels.library is None:
        reason = kernels.reason
    if reason is None:
        return replace(layer, path="hopper"), None
    return layer, reason


def restrict_plan(plan: Plan, chosen: Sequence[Mapping[str, str]]) -> Plan:
    """`plan` with every matrix in bf16 that `chosen` (scheme of each matrix, by layer) has in bf16, and of a
    rotated one in e4m3 what it has in e4m3."""
    layers = []
    for layer, schemes in zip(plan.layers, chosen, strict=True):
        stay: dict[str, Any] = {matrix: "bf16" for matrix in MATRICES if schemes[matrix] == "bf16"}
        if plan.rotated:
            stay |= {matrix: "fp8" for matrix in MATRICES if schemes[matrix].startswith("e4m3")}
        layers.append(replace(layer, **stay))
    return replace(plan, layers=tuple(layers))


def _explain_paths(reasons: list[str | None]) -> list[str]:
    """A note for each run of layers that goes the portable path for one reason."""
    notes, first = [], 0
    for reason, run in groupby(reasons):
        count = len(list(run))
        if reason is not None:
            where = "every layer" if count == len(reasons) else f"layers {first} to {first + count - 1}"
            notes.append(f"hopper kernels: {reason}; {where} on the portable path")
        first += count
    return notes
