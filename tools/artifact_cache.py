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

import torch

import engine
from engine.build import BuildSpec, build_artifact
from engine.build.spec import Device, Dtype
from engine.manifest import FORMAT, MANIFEST, file_digest
from engine.packed import BatchBounds
from engine.runtime.machine import cpu_features, device_arch
from tools.model_cache import cache_root

BUILT_FROM = ("manifest.py", "packed.py", "build", "models", "ops", "runtime/runner.cpp")  # of engine/


@dataclass(frozen=True)
class Wanted:
    """What to have an artifact of; `say` is told each stage of a build."""

    model: Path
    name: str
    device: Device
    dtype: Dtype | None  # None: float32 on a CPU, bfloat16 on CUDA
    bounds: BatchBounds


def cached_artifact(
    wanted: Wanted, cache: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Path:
    """The directory of a built artifact, from the cache or built now (a minute or more).

    Raises what engine.build raises: ArtifactError, ConfigError.
    """
    artifacts = (cache or cache_root()) / "artifacts"
    target = artifacts / f"{wanted.name}-{wanted.device}-{cache_key(wanted)}"
    if (target / MANIFEST).is_file():
        return target
    artifacts.mkdir(parents=True, exist_ok=True)
    with _locked(artifacts / f".{target.name}.lock", say):
        if (target / MANIFEST).is_file():
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
            cache=artifacts.parent / "native",
        )
        build_artifact(spec, say)
        building.rename(target)
    return target


def cache_key(wanted: Wanted) -> str:
    """16 hex digits over everything that a build's result depends on."""
    root = Path(engine.__file__).parent
    code = [path for name in BUILT_FROM for path in _code_files(root / name)]
    machine = (device_arch(torch.device(wanted.device)), *cpu_features())
    asked = (wanted.device, wanted.dtype or "", repr(wanted.bounds))
    digest = hashlib.sha256("\0".join((str(FORMAT), torch.__version__, *machine, *asked)).encode())
    for path in [*code, *_model_files(wanted.model)]:
        digest.update(f"\0{path.name}\0{file_digest(path)}".encode())
    return digest.hexdigest()[:16]


def _code_files(path: Path) -> list[Path]:
    return (
        [path]
        if path.is_file()
        else sorted(each for each in path.rglob("*") if each.suffix in {".py", ".cpp"})
    )


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
