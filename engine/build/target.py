"""Whether an artifact can be written where it shall go, asked before minutes of work; and what to say where
the disk fills up later.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.disk import full_folders, is_full, unwritten
from engine.errors import ArtifactError, ConfigError
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


@contextmanager
def full_disk_told(out: Path, cache: Path) -> Iterator[None]:
    """ArtifactError where a disk that the build writes to is full: it names the file, or else the disk.

    Compilers write to the folder for temporary files and die there without a word of their own (a linker by
    SIGBUS), so what is left of room is looked at, too. Whoever calls removes what was written.
    """
    try:
        yield
    except (ArtifactError, ConfigError):
        raise
    except Exception as error:
        folders = (out.parent, Path(tempfile.gettempdir()), cache)
        places = full_folders(folders)
        if not is_full(error) and not places:
            raise
        where = unwritten(error) or " or ".join(map(str, places or folders))
        kept = f" and {out} stays as it was" if out.exists() else ""
        reason = f"no artifact is written: the disk is full, at {where}; what was begun is removed{kept}"
        raise ArtifactError(f"{out}: {reason}; make room and build again") from error
