"""What a process that only serves has registered, which is all that packages call by name; how it fails."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from engine.artifact import Artifact
from engine.errors import ArtifactError
from tiny_models import TinyModel

OPERATIONS = (
    "packed_attention", "beam_attention", "head_norm_rope_keep", "kept_beam_attention", "product_add_norm",
)  # fmt: skip


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


def test_a_full_disk_for_temporary_files_is_told(
    tiny_causal: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch unpacks a package there; what it had begun would stay, more with every start of a worker."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    artifact = Artifact.open(tiny_causal.artifact)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # as a full disk
    try:
        with pytest.raises(ArtifactError, match=rf"model.pt2: cannot be unpacked in {tmp_path}"):
            artifact.open_lanes(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    artifact.open_lanes(1).close()
