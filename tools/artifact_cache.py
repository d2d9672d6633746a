"""Artifacts built on demand and kept in the user's cache, for the demo, the benchmarks and the tests.

The key covers all that the compiled result depends on: the source's digest, the code that is exported, torch,
device and bounds. One process builds, others wait for it; a build that fails leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import engine
from engine.artifact import FORMAT
from engine.build import BuildSpec, build_artifact
from engine.packed import BatchBounds
from tools.model_cache import cache_root

BUILT_FROM = ("artifact.py", "build*", "models", "ops", "packed.py")  # of engine/: what shapes the package


@dataclass(frozen=True)
class Wanted:
    """What to have an artifact of; `say` is told each stage of a build."""

    model: Path
    name: str
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    bounds: BatchBounds


def cached_artifact(
    wanted: Wanted, cache: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Path:
    """The directory of a built artifact, from the cache or built now (a minute or more).

    Raises what engine.build raises: ArtifactError, ConfigError.
    """
    artifacts = (cache or cache_root()) / "artifacts"
    target = artifacts / f"{wanted.name}-{wanted.device}-{cache_key(wanted)}"
    if (target / "manifest.json").is_file():
        return target
    artifacts.mkdir(parents=True, exist_ok=True)
    with _locked(artifacts / f".{target.name}.lock", say):
        if (target / "manifest.json").is_file():
            return target
        building = artifacts / f".building-{target.name}"
        shutil.rmtree(building, ignore_errors=True)  # what an interrupted build left; we hold its lock
        spec = BuildSpec(
            model=wanted.model,
            out=building,
            name=wanted.name,
            device=wanted.device,
            dtype=wanted.dtype,
            bounds=wanted.bounds,
        )
        build_artifact(spec, say)
        building.rename(target)
    return target


def cache_key(wanted: Wanted) -> str:
    """16 hex digits over everything that a build's result depends on."""
    parts = [
        str(FORMAT),
        torch.__version__,
        wanted.device,
        wanted.dtype,
        repr(wanted.bounds),
        device_arch(wanted),
    ]
    root = Path(engine.__file__).parent
    found = sorted(path for pattern in BUILT_FROM for path in root.glob(pattern))
    code = [path for each in found for path in ([each] if each.is_file() else sorted(each.rglob("*.py")))]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in [*code, *_model_files(wanted.model)]:
        digest.update(f"\0{path.name}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def device_arch(wanted: Wanted) -> str:
    """What the compiled code is compiled for: "sm_90", or the vector instructions of this CPU."""
    if wanted.device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"
    return torch.backends.cpu.get_cpu_capability()


def _model_files(model: Path) -> list[Path]:
    return [model] if model.is_file() else sorted(path for path in model.iterdir() if path.is_file())


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock of this host; it goes with the process, so a crash leaves none behind."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds this artifact; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
