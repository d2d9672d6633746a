"""python -m engine.ops.hopper.compiler FOLDER: compiles csrc/ into one shared library with nvcc; prints its
path. Needs no GPU: a machine with CPUs alone builds what an H200 runs.

Contract: deterministic by content. The library's name carries a digest of every source and the flags, and one
of nvcc's version; a library that is there is taken as it is. Register spills, a serialised wgmma or an
ignored setmaxnreg are a failed build, not a slow kernel. nvcc is `NVCC`, else the one on PATH, else that of
the nvidia-cuda-nvcc wheel (extra `hopper`), else `NvccMissingError`. Where BOUNDGEN_HOPPER_LIBRARY is set, it
names a library that was compiled elsewhere from the same sources, and nvcc is not asked for.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.ops.hopper.library import file_name
from engine.ops.hopper.wgmma import wgmma_header

SOURCES = Path(__file__).parent / "csrc"
ELEMENTS = ("E4m3", "Bf16", "Int8")
ARCH = (
    "-gencode=arch=compute_90a,code=sm_90a",
)  # the shorthand -arch=sm_90a makes some nvcc releases add a plain sm_90 pass
FLAGS = ("-O3", "-std=c++17", "-lineinfo", "-Xptxas", "-v", "-Xcompiler", "-fPIC,-fvisibility=hidden")
# What ptxas says when code would be right but slow.
SLOW = re.compile(r"setmaxnreg.*ignored|wgmma.*serialized|C7508|C7510", re.IGNORECASE)
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class NvccMissingError(RuntimeError):
    """No CUDA compiler was found."""


class CompileError(RuntimeError):
    """nvcc failed, or made code that spills or serialises."""


def find_nvcc() -> Path:
    """Path of nvcc. Raises NvccMissingError with what to install."""
    named = os.environ.get("NVCC")
    found = named or shutil.which("nvcc")
    if found and Path(found).exists():
        return Path(found).resolve()
    wheel = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / "nvcc"
    if wheel.exists():
        return wheel
    raise NvccMissingError(
        f"no nvcc (NVCC={named!r}, none on PATH, none at {wheel}): "
        "pip install 'boundgen[hopper]' (nvidia-cuda-nvcc and what it needs)"
    )


def _version(nvcc: Path) -> str:
    return subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout


def sources_digest() -> str:
    """16 hex digits over every source and the flags: what the calls of this code fit."""
    state = hashlib.sha256(repr((ARCH, FLAGS, wgmma_header())).encode())
    for source in sorted(SOURCES.iterdir()):
        state.update(source.name.encode() + b"\0" + source.read_bytes())
    return state.hexdigest()[:16]


def digest(nvcc: Path) -> str:
    """Of everything that decides the library's content: sources, then compiler."""
    return f"{sources_digest()}-{hashlib.sha256(_version(nvcc).encode()).hexdigest()[:8]}"


def given_library() -> Path | None:
    """What BOUNDGEN_HOPPER_LIBRARY names, where it is set; CompileError for a library of other sources."""
    named = os.environ.get("BOUNDGEN_HOPPER_LIBRARY")
    if not named:
        return None
    library, wanted = Path(named).expanduser(), sources_digest()
    if not library.is_file() or not library.name.startswith(f"hopper-{wanted}-"):
        raise CompileError(
            f"BOUNDGEN_HOPPER_LIBRARY = {named!r}: wanted a file hopper-{wanted}-*.so, as "
            "`python -m engine.ops.hopper.compiler FOLDER` makes it from these sources"
        )
    return library


def expected_digest() -> str:
    """Of the library that a build here would take; raises as find_nvcc and given_library do."""
    given = given_library()
    return digest(find_nvcc()) if given is None else given.stem.removeprefix("hopper-")


def check_report(report: str) -> None:
    """Raise CompileError where ptxas reports spills, serialised wgmma or an ignored setmaxnreg."""
    slow = [line for line in report.splitlines() if SLOW.search(line)]
    spills = [m.group(0) for m in SPILL.finditer(report) if int(m.group(1)) or int(m.group(2))]
    if slow or spills:
        raise CompileError("ptxas made slow code:\n" + "\n".join(spills + slow) + "\n" + report)


def _compile(nvcc: Path, source: str, defines: tuple[str, ...], include: Path, out: Path) -> str:
    command = [nvcc, *ARCH, *FLAGS, *defines, "-I", include, "-I", SOURCES, "-c", SOURCES / source, "-o", out]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    if done.returncode:
        raise CompileError(f"nvcc failed on {source}:\n{report}")
    check_report(report)
    return report


def build_library(folder: Path, *, threads: int = 2) -> tuple[Path, str]:
    """Compile into `folder` (made if missing) unless a library of the same content is there.

    Returns (path, ptxas report; empty when nothing was compiled). About a minute on two cores. Raises
    NvccMissingError, CompileError.
    """
    nvcc = find_nvcc()
    library = folder / file_name(digest(nvcc))
    if library.exists():
        return library, ""
    folder.mkdir(parents=True, exist_ok=True)
    units = [(f, (f"-DELEMENT={e}",)) for f in ("chain.cu", "gemm.cu") for e in ELEMENTS] + [
        ("attention.cu", ()),
        ("batch.cu", ()),
    ]
    with tempfile.TemporaryDirectory(dir=folder) as scratch, ThreadPoolExecutor(threads) as pool:
        work = Path(scratch)
        (work / "wgmma.cuh").write_text(wgmma_header())
        objects = [work / f"{i}.o" for i in range(len(units))]
        reports = list(pool.map(lambda u, o: _compile(nvcc, u[0], u[1], work, o), units, objects))
        lib = nvcc.parent.parent / "lib"  # where the wheels keep libcudart_static
        search = ["-L", lib] if lib.is_dir() else []
        linked = work / "library.so"
        link = [nvcc, *ARCH, "-shared", *search, *objects, "-o", linked]
        done = subprocess.run([str(part) for part in link], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"nvcc failed to link:\n{done.stdout}{done.stderr}")
        linked.replace(library)  # atomic: two builders at once end with the same content
    return library, "\n".join(reports)


if __name__ == "__main__":
    built, _ = build_library(Path(sys.argv[1]).expanduser(), threads=os.cpu_count() or 1)
    sys.stdout.write(f"{built}\n")
