"""Estimated times of a decoder's layers: what the accuracy half puts on a chart without a GPU.

From kernel times of one shape on one H200 (tools/bench/RESULTS.md: 4,096 tokens of Qwen3-0.6B), scaled by
floating-point operations; int8 at 97% of e4m3's sustained speed (94 to 98% at 2,048 to 8,192 tokens).
An exact residual scale is one more pass over the residual. Attention and gaps count the same in every plan.
"""

from __future__ import annotations

from engine.models.architecture import Architecture
from engine.quant.rows import STREAM
from engine.quant.times import TOKENS, Times

SOURCE = "estimated from kernel times of one shape on an H200"
# us a GFLOP by kind: bf16, e4m3
_US = {"qkv": (1.73, 1.14), "output": (1.52, 1.01), "gate_up": (1.70, 0.775), "down": (1.44, 0.86)}
_INT8_OVER_E4M3 = 0.97
_PASS_US = 5.9 / (4096 * 1024)  # an element of the residual, read and written once more
_ATTENTION_US = 15.0 / (4096 * 2048)  # an element of the attention output, samples of 128 tokens


def estimate_times(architecture: Architecture) -> Times:
    """Of a layer of such sizes, in every scheme."""
    a = architecture
    shapes = {
        "qkv": (a.q_width + 2 * a.kv_width, a.hidden_size),
        "output": (a.hidden_size, a.q_width),
        "gate_up": (2 * a.intermediate_size, a.hidden_size),
        "down": (a.hidden_size, a.intermediate_size),
    }
    layer, saved = _ATTENTION_US * TOKENS * a.q_width, {}
    for kind, (rows, columns) in shapes.items():
        gflop = 2e-9 * TOKENS * rows * columns
        bf16, e4m3 = (gflop * us for us in _US[kind])
        layer += bf16
        saved[kind] = {
            "e4m3_static": bf16 - e4m3,
            "e4m3_token": bf16 - e4m3 - _PASS_US * TOKENS * columns,
            "int8": bf16 - e4m3 / _INT8_OVER_E4M3,
        }
    exact = {kind: _PASS_US * TOKENS * shapes[kind][1] for kind in STREAM}
    return Times(SOURCE, layer, saved, exact)
