"""Compiles our few C++ files into native.so, the library that comes with every artifact, and beam.so, which
comes with those that search.

It takes ten seconds each, so the result is kept in a cache folder under a name that hashes the sources, the
flags, torch and the compiler; a build copies it from there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from engine.build.compiler import CompilerCheck
from engine.errors import ArtifactError

_ENGINE = Path(__file__).resolve().parent.parent
SOURCES = (_ENGINE / "ops" / "packed_attention.cpp", _ENGINE / "runtime" / "runner.cpp")
BEAM_SOURCES = (_ENGINE / "ops" / "beam_attention.cpp",)
_TIMEOUT_S = 600


def default_cache() -> Path:
    """`native` in BOUNDGEN_CACHE, or in ~/.cache/boundgen."""
    chosen = os.environ.get("BOUNDGEN_CACHE")
    return (Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "boundgen") / "native"


def build_native(compiler: CompilerCheck, cache: Path, sources: Sequence[Path] | None = None) -> Path:
    """The library of `sources` (native.so's) in `cache`, compiled there if need be; ArtifactError with the
    compiler's words."""
    sources = SOURCES if sources is None else sources
    flags = [
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    identity = hashlib.sha256(repr((flags, torch.__version__, compiler.path, compiler.version)).encode())
    for source in sources:
        identity.update(source.read_bytes())
    library = cache / f"native-{identity.hexdigest()[:16]}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _compile(compiler.path, flags, sources, library)
    return library


def _compile(compiler: str, flags: list[str], sources: Sequence[Path], library: Path) -> None:
    includes = [f"-I{path}" for path in include_paths()]
    links = [f"-L{path}" for path in library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        partial = Path(folder, "native.so")
        command = [compiler, *flags, *includes, *map(str, sources), "-o", str(partial), *links]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise ArtifactError(f"compiler {compiler}: native library failed to build: {done.stderr[-2000:]}")
        shutil.move(partial, library)
