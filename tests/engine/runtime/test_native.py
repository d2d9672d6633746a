"""What a process that only serves has registered: everything that packages call by name."""

from __future__ import annotations

import subprocess
import sys

OPERATIONS = ("packed_attention", "beam_attention", "head_norm_rope_keep", "kept_beam_attention")


def test_opening_artifacts_is_enough() -> None:
    """In a process of its own: tests import what builds them, too."""
    program = f"""
import engine.artifact, sys, torch
assert "engine.build" not in sys.modules
for name in {OPERATIONS!r}:
    assert torch._C._dispatch_has_kernel("boundgen::" + name), name
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
