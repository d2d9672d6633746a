"""Artifacts built on demand and kept in the user's cache, for the demo, the benchmarks and the tests.

The key covers all that the compiled result depends on: the source's digest, the code that is exported, torch,
device and bounds. One process builds, others wait for it; a build that fails leaves nothing behind. After a
build, artifacts of the same model that nobody used lately are removed but for the newest few; a process that
has one open keeps what it opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import engine
from engine.beam.bounds import BeamBounds
from engine.build import BuildSpec, build_artifact
from engine.build.spec import Device, Dtype, Kernels, Precision
from engine.manifest import FORMAT, MANIFEST, file_digest
from engine.ops.hopper.compiler import NvccMissingError, expected_digest
from engine.packed import BatchBounds
from engine.runtime.machine import cpu_features, device_arch
from tools.model_cache import cache_root

KEPT = 3  # of a model and device, the last used
UNUSED_S = 2 * 3600.0  # younger than this, someone may be about to open it: a whole test run takes less
CODE = {".py", ".cpp", ".cu", ".cuh"}
BUILT_FROM = ("manifest.py", "packed.py", "build", "models", "ops", "runtime/runner.cpp")  # of engine/
ROUNDED_BY = ("quant",)  # with a precision
SEARCHED_WITHIN = ("runtime/beam_buckets.py",)  # with beams


@dataclass(frozen=True)
class Wanted:
    """What to have an artifact of; `say` is told each stage of a build."""

    model: Path
    name: str
    device: Device
    dtype: Dtype | None  # None: float32 on a CPU, bfloat16 on CUDA
    bounds: BatchBounds
    precision: Precision | None = None  # of BuildSpec, as the next
    kernels: Kernels = "fastest"
    beam: BeamBounds | None = None  # None: it cannot search


def cached_artifact(
    wanted: Wanted, cache: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Path:
    """The directory of a built artifact, from the cache or built now (a minute or more).

    Raises what engine.build raises: ArtifactError, ConfigError.
    """
    artifacts = (cache or cache_root()) / "artifacts"
    kind = f"{wanted.name}-{wanted.device}"
    target = artifacts / f"{kind}-{cache_key(wanted)}"
    artifacts.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a cache that is only read
        _lock(target).touch()  # says that it is used
    if (target / MANIFEST).is_file():
        return target
    with _locked(_lock(target), say):
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
            precision=wanted.precision,
            kernels=wanted.kernels,
            beam=wanted.beam,
            cache=artifacts.parent / "native",
        )
        build_artifact(spec, say)
        building.rename(target)
    remove_old(artifacts, kind, say)
    return target


def remove_old(artifacts: Path, kind: str, say: Callable[[str], None]) -> None:
    """Remove what is too much of a `kind` ("smollm2-cpu"), and what builds that were killed left of it."""
    named = re.compile(
        rf"(?P<scratch>\.+(building-|removed-))?(?P<target>{re.escape(kind)}-[0-9a-f]{{16}})(\..*)?"
    )
    found = [(path, match) for path in artifacts.iterdir() if (match := named.fullmatch(path.name))]
    built = [path for path, match in found if path.name == match["target"]]
    built.sort(key=_last_use_s, reverse=True)
    old = [path for path in built[KEPT:] if time.time() - _last_use_s(path) > UNUSED_S]
    removed = sum(_remove(path, path) for path in old)
    for path, match in found:
        if match["scratch"]:
            _remove(path, artifacts / match["target"])
    if removed:
        say(f"{removed} artifacts of {kind} that were not used lately were removed from the cache")


def _remove(path: Path, target: Path) -> bool:
    """Whether `path` was removed; not while a process builds `target`."""
    with _lock(target).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        gone = target.with_name(f".removed-{path.name}")
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            path.rename(gone)  # at once: nobody may find the half of it
        shutil.rmtree(gone, ignore_errors=True)
    return True


def _lock(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _last_use_s(target: Path) -> float:
    """As time.time: when somebody asked for it, or else when it was made."""
    times = [0.0]
    for path in (target, _lock(target)):
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def cache_key(wanted: Wanted) -> str:
    """16 hex digits over everything that a build's result depends on."""
    root = Path(engine.__file__).parent
    names = [
        *BUILT_FROM,
        *(ROUNDED_BY if wanted.precision else ()),
        *(SEARCHED_WITHIN if wanted.beam else ()),
    ]
    code = [path for name in names for path in _code_files(root / name)]
    machine = (device_arch(torch.device(wanted.device)), *cpu_features())
    asked = [wanted.device, wanted.dtype or "", repr(wanted.bounds), *_kernels(wanted)]
    if wanted.beam is not None:
        asked.append(repr(wanted.beam))
    digest = hashlib.sha256("\0".join((str(FORMAT), torch.__version__, *machine, *asked)).encode())
    for path in [*code, *_model_files(wanted.model)]:
        digest.update(f"\0{path.name}\0{file_digest(path)}".encode())
    return digest.hexdigest()[:16]


def _kernels(wanted: Wanted) -> tuple[str, ...]:
    """What decides about the kernels: asked for, and the compiler that makes those for one GPU generation."""
    if wanted.precision is None:
        return ()
    try:
        kernels = expected_digest()
    except NvccMissingError:
        kernels = "no nvcc"
    return (wanted.precision, wanted.kernels, kernels)


def _code_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.suffix in CODE)


def _model_files(model: Path) -> list[Path]:
    return [model] if model.is_file() else sorted(path for path in model.iterdir() if path.is_file())


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock of this host; it goes with the process, so a crash leaves none behind."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds this artifact; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
