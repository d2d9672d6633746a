"""What kind of work a kernel does, by its name: ours, cuBLAS's, PyTorch's and Inductor's.

Names that nothing here knows are "other". A fused kernel counts whole as what it mostly does: the hopper
chain (norms, gate and quantisation in its epilogues) as gemm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CLASSES = ("gemm", "attention", "norm", "select", "copy", "other")

# The first that matches counts, so what is more special comes first.
_TABLE = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("other", r"attention_tiles|\bplan_kernel"),  # work lists
        ("attention", r"attention|attend|flash|fmha|sdpa|softmax"),
        (
            "gemm",
            r"\bchain_kernel|gemm|gemv|nvjet|cutlass|cublas|splitk|triton_tem|_gate_up|_linear_int8|_mm\b"
            r"|\bsplit_product",
        ),
        (
            "select",
            r"\bcandidates|\branks|_maxima|_floor\b|row_scores|hot_chunks|_beam_(follow|advance|positions)"
            r"|\bexact_logits|\bcorrected_keys|\brescored",
        ),
        ("select", r"\brows_kernel|embedding|gather|scatter|index|top_?k|sort|select|frontier|argmax|scan"),
        ("norm", r"norm|rsqrt|_rope"),
        ("copy", r"memcpy|memset|copy|fill|clone|cat_?array|_cat(_|\b)|_to_\w*|transpose|zeros"),
    )
)


def classify(kernel: str) -> str:
    """One of CLASSES."""
    return next((kind for kind, pattern in _TABLE if pattern.search(kernel)), "other")


def shares(times: Mapping[str, float]) -> dict[str, float]:
    """Time by kernel name -> each class's share of the sum, the classes in their order; {} where there is no
    time."""
    total = sum(times.values())
    if total <= 0:
        return {}
    found = dict.fromkeys(CLASSES, 0.0)
    for kernel, time in times.items():
        found[classify(kernel)] += time / total
    return found
