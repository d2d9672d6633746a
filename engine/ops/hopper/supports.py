"""Which decoder layers these kernels serve. A layer that they do not serve goes to the portable path; the
build says why.

Contract: a pure function of sizes; `unsupported` returns a reason for the build's log, or None.
"""

from dataclasses import dataclass

import torch

from engine.ops.hopper import tiles
from engine.ops.hopper.library import ELEMENT_CODES
from engine.ops.hopper.products import BLOCK_COLUMNS

MATRICES = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a decoder layer. bias: on qkv; head_norm: RMSNorm of q and k heads. activation as transformers
    names it.
    """

    hidden: int
    intermediate: int
    num_q: int
    num_kv: int
    head_dim: int
    bias: bool = False
    head_norm: bool = False
    eps: float = 1e-6
    activation: str = "silu"
    output_bias: bool = False  # on o, gate, up or down
    rotary_dim: int | None = None  # None: all of head_dim

    @property
    def qkv_width(self) -> int:
        """Columns of the qkv product."""
        return (self.num_q + 2 * self.num_kv) * self.head_dim

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of each matrix."""
        attended = self.num_q * self.head_dim
        return {
            "qkv": (self.qkv_width, self.hidden),
            "o": (self.hidden, attended),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


def unsupported(
    shape: LayerShape, precision: dict[str, torch.dtype], capability: tuple[int, int] = (9, 0)
) -> str | None:
    """Why a layer cannot run here, or None. precision: element type of each matrix; capability: the GPU's."""
    checks: list[tuple[bool, str]] = [
        (capability == (9, 0), f"the GPU's compute capability is {capability}, the kernels are for (9, 0)"),
        (shape.head_dim in (64, 128), f"head_dim {shape.head_dim} is neither 64 nor 128"),
        (
            shape.rotary_dim in (None, shape.head_dim),
            f"rotary_dim {shape.rotary_dim} is not the whole head ({shape.head_dim})",
        ),
        (
            shape.num_q % shape.num_kv == 0,
            f"{shape.num_q} q heads do not divide into {shape.num_kv} kv heads",
        ),
        (shape.hidden % 32 == 0, f"hidden {shape.hidden} is no multiple of 32"),
        (bool(tiles.residual_widths(shape.hidden)), f"hidden {shape.hidden} is over {tiles.PARTIALS * 256}"),
        (shape.intermediate % 64 == 0, f"intermediate {shape.intermediate} is no multiple of 64"),
        (shape.activation == "silu", f"activation {shape.activation!r} is not 'silu'"),
        (not shape.output_bias, "o, gate, up or down has a bias"),
        (set(precision) == set(MATRICES), f"precision names {sorted(precision)}, wanted {sorted(MATRICES)}"),
    ]
    checks += [(t in ELEMENT_CODES, f"{name} in {t} has no kernel") for name, t in precision.items()]
    if torch.int8 in precision.values():
        checks += _of_int8(shape, precision)
    return next((reason for fits, reason in checks if not fits), None)


def refuses_int8(matrix: str, intermediate: int) -> str | None:
    """Why a matrix of MATRICES cannot be in int8 where another type could, or None."""
    if matrix in ("gate_up", "down") and intermediate % BLOCK_COLUMNS:
        return f"intermediate {intermediate} is no multiple of {BLOCK_COLUMNS}, which int8 wants"
    return None


def _of_int8(shape: LayerShape, precision: dict[str, torch.dtype]) -> list[tuple[bool, str]]:
    int8 = {name for name, element in precision.items() if element == torch.int8}
    e4m3 = {name for name, element in precision.items() if element == torch.float8_e4m3fn}
    mixed = not e4m3 or (int8 <= {"o", "down"} and e4m3 <= {"qkv", "gate_up"})
    checks = [
        (mixed, "int8 and e4m3 in one layer, other than e4m3 of the residual stream and int8 of the rest")
    ]
    narrow = [name for name, element in precision.items() if element == torch.int8]
    reasons = [refuses_int8(name, shape.intermediate) for name in narrow]
    return checks + [(False, reason) for reason in reasons if reason is not None]
