"""Estimated time of a decoder's matrices under a plan: what the accuracy half puts on a chart without a GPU.

From kernel times of one shape on one H200 (tools/bench/RESULTS.md: 4,096 tokens of Qwen3-0.6B), scaled by
floating-point operations; int8 at 97% of e4m3's sustained speed (94 to 98% at 2,048 to 8,192 tokens).
An exact residual scale is one more pass over the residual. Attention and gaps count the same in every plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.models.architecture import Architecture
from engine.quant.emulation import Place
from engine.quant.rows import STREAM
from engine.quant.schemes import KINDS, ROTATED, Scheme

# us a GFLOP by kind: bf16, e4m3
_US = {"qkv": (1.73, 1.14), "output": (1.52, 1.01), "gate_up": (1.70, 0.775), "down": (1.44, 0.86)}
_INT8_OVER_E4M3 = 0.97
_PASS_US = 5.9 / (4096 * 1024)  # an element of the residual, read and written once more
_ATTENTION_US = 15.0 / (4096 * 2048)  # an element of the attention output, samples of 128 tokens
TOKENS = 4096


def matrix_us(architecture: Architecture, kind: str, scheme: Scheme, *, exact: bool = False) -> float:
    """One matrix of one layer for TOKENS tokens; `exact`: its residual scales need a pass of their own."""
    a = architecture
    rows, columns = {
        "qkv": (a.q_width + 2 * a.kv_width, a.hidden_size),
        "output": (a.hidden_size, a.q_width),
        "gate_up": (2 * a.intermediate_size, a.hidden_size),
        "down": (a.hidden_size, a.intermediate_size),
    }[kind]
    gflop = 2e-9 * TOKENS * rows * columns
    bf16, e4m3 = _US[kind]
    if scheme == "bf16":
        return gflop * bf16
    us = gflop * (e4m3 / _INT8_OVER_E4M3 if scheme in ROTATED else e4m3)
    needs_pass = scheme == "e4m3_token" or (exact and kind in STREAM)
    return us + (_PASS_US * TOKENS * columns if needs_pass else 0.0)


def plan_us(
    architecture: Architecture, plan: Mapping[Place, Scheme], exact: frozenset[Place] = frozenset()
) -> float:
    """All layers; places that `plan` does not name are bf16."""
    a = architecture
    places = [(layer, kind) for layer in range(a.num_layers) for kind in KINDS]
    matrices = sum(matrix_us(a, place[1], plan.get(place, "bf16"), exact=place in exact) for place in places)
    return matrices + a.num_layers * _ATTENTION_US * TOKENS * a.q_width
