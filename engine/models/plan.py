"""Which operation and which precision serve each step of a CUDA decoder: decided at build, kept in the
manifest.

A plan is data: the decoder is built from it without a question about the model's name. `notes` says what was
asked for and cannot be served, and why.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.errors import ConfigError
from engine.models.architecture import Architecture
from engine.ops.portable.attention import HEAD_DIMS
from engine.ops.portable.gate_up import serves_gate_up

Precision = Literal["bf16", "fp8"]
Scaling = Literal["static", "token"]
MATRICES = ("qkv", "output", "gate_up", "down")
FIRST_E4M3 = 89  # sm_89; 8-bit tensor cores before it are int8 only
FIRST_ARCH = 80


@dataclass(frozen=True)
class LayerPlan:
    """Precision of each matrix; fused_gate_up: projection, gate and quantisation in one kernel."""

    qkv: Precision
    output: Precision
    gate_up: Precision
    down: Precision
    fused_gate_up: bool


@dataclass(frozen=True)
class Plan:
    """`scaling` of quantised activations: one scale a tensor from calibration, or one a token as they are
    made."""

    layers: tuple[LayerPlan, ...]
    scaling: Scaling
    notes: tuple[str, ...] = ()

    @property
    def quantises(self) -> bool:
        return any(getattr(layer, matrix) == "fp8" for layer in self.layers for matrix in MATRICES)

    def to_manifest(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_manifest(cls, values: dict[str, Any]) -> Plan:
        layers = tuple(LayerPlan(**layer) for layer in values["layers"])
        return cls(layers, values["scaling"], tuple(values["notes"]))


def choose_plan(architecture: Architecture, precision: Precision, *, arch: int, static: bool) -> Plan:
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
    widths = {"qkv": (a.q_width + 2 * a.kv_width, a.hidden_size), "output": (a.hidden_size, a.q_width)}
    widths |= {
        "gate_up": (2 * a.intermediate_size, a.hidden_size),
        "down": (a.hidden_size, a.intermediate_size),
    }
    chosen: dict[str, Precision] = {}
    for matrix, shape in widths.items():
        fits = precision == "fp8" and all(width % 16 == 0 for width in shape)
        if precision == "fp8" and not fits:
            notes.append(f"{matrix} {shape[0]} x {shape[1]}: not multiples of 16, stays bf16")
        chosen[matrix] = "fp8" if fits else "bf16"
    fused = serves_gate_up(a.hidden_size, a.intermediate_size, a.mlp_bias)
    if not fused:
        notes.append(f"gate_up {a.hidden_size} -> 2 x {a.intermediate_size}: projection and gate run apart")
    layer = LayerPlan(**chosen, fused_gate_up=fused)
    return Plan((layer,) * a.num_layers, "static" if static else "token", tuple(notes))
