"""Whether an artifact can be written where it shall go, asked before minutes of work.

torch ends the process where a disk is full while it writes a package, so there is no waiting for that.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from engine.errors import ArtifactError
from engine.manifest import MANIFEST

PACKAGE_BYTES = 32_000_000  # of an artifact without weights: SmolLM2-135M's that searches has 9 MB


def require_replaceable(out: Path) -> None:
    """ArtifactError for what is there and no artifact."""
    if out.exists() and not (out / MANIFEST).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise ArtifactError(f"{out}: exists and is no artifact, so it is left alone; choose another --out")


def require_folder(parent: Path) -> None:
    """Make it; ArtifactError where it cannot be, or nothing can be written in it."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        reason = f"no artifact can be written there: {error.strerror}; choose another --out"
        raise ArtifactError(f"{parent}: {reason}") from error


def require_room(parent: Path, weight_bytes: int) -> None:
    """ArtifactError unless the weights and what is compiled fit on the disk."""
    free, needed = shutil.disk_usage(parent).free, weight_bytes + PACKAGE_BYTES
    if free < needed:
        said = f"{free / 1e6:,.0f} MB are free, the artifact needs about {needed / 1e6:,.0f}"
        raise ArtifactError(f"{parent}: {said}; make room, or choose another --out")
