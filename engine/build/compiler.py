"""The C++ compiler that Inductor will call, tried out before a build depends on it.

A compiler that links libstdc++ statically makes packages with a second copy of it, which crash when they are
loaded. Shared with `boundgen doctor`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import CppCompileError, InductorError

from engine.disk import writing
from engine.errors import ArtifactError

_PROBE = '#include <string>\n#include <iostream>\nvoid probe(std::string s) { std::cout << s + "."; }\n'
_TIMEOUT_S = 120
_MEND = "set CXX=/usr/bin/g++ and CC=/usr/bin/gcc, or install one: apt-get install g++"


@dataclass(frozen=True)
class CompilerCheck:
    """What was found; `how_to_mend` says why it is not ok and what to do, and is empty where it is."""

    path: str
    version: str
    ok: bool
    how_to_mend: str


def check_compiler() -> CompilerCheck:
    """Compile a small library with Inductor's compiler and look at what it links. Takes about a second."""
    try:
        name = str(get_cpp_compiler())
        path = shutil.which(name) or name
        version = _run([path, "--version"]).splitlines()[0]
    except (RuntimeError, OSError, IndexError, subprocess.SubprocessError) as error:
        return CompilerCheck("", "", False, f"no C++ compiler works ({error}); {_MEND}")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        with writing(source):
            source.write_text(_PROBE)
        try:
            _run([path, "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library)])
        except (OSError, subprocess.SubprocessError) as error:
            return CompilerCheck(path, version, False, f"it cannot build a C++20 library ({error}); {_MEND}")
        # The name of a library that is linked dynamically stands in the string table of the file.
        dynamic = b"libstdc++.so" in library.read_bytes()
    if not dynamic:
        why = "it does not link libstdc++ dynamically, and packages built so crash when they are loaded"
        return CompilerCheck(path, version, False, f"{why}; {_MEND}")
    return CompilerCheck(path, version, True, "")


def require_compiler() -> CompilerCheck:
    check = check_compiler()
    if not check.ok:
        raise ArtifactError(f"compiler {check.path or 'c++'}: {check.how_to_mend}")
    return check


@contextmanager
def compiler_told() -> Iterator[None]:
    """ArtifactError with what the compiler said where it fails, which torch hides in its own trace."""
    try:
        yield
    except InductorError as error:
        failed = error.inner_exception
        if not isinstance(failed, CppCompileError):
            raise
        lines = [line.strip() for line in failed.output.splitlines() if line.strip()]
        said = next((line for line in lines if "error:" in line), lines[-1] if lines else "without a word")
        if "Killed" in said:  # by the system, as nobody else does
            said += "; it had too little memory: end other work, or build with more"
        reason = f"{said}; boundgen --debug build has all of it"
        raise ArtifactError(f"compiler {failed.cmd[0]} failed: {reason}") from error


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise subprocess.SubprocessError((done.stderr or done.stdout).strip()[-300:])
    return done.stdout
