"""What is known of Triton at import, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

WITHOUT_EARLY_STARTS = """
import sys
import torch
import triton.language.extra.cuda
{replace}
from engine.ops.portable import language, product_norm
assert language.triton is not None
assert hasattr(language.tl, "program_id")
assert hasattr(product_norm.norm_kernel, "fn")  # made for a device
assert language.starts_early(torch.empty(0)) is {early}
"""


@pytest.mark.parametrize(
    ("replace", "early"),
    [("", True), ('sys.modules["triton.language.extra.cuda"] = sys', False)],
    ids=["there", "missing"],
)
def test_kernels_need_no_early_starts(replace: str, early: bool) -> None:
    """Names that a Triton may lack cost the early starts, not every kernel."""
    program = WITHOUT_EARLY_STARTS.format(replace=replace, early=early)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
