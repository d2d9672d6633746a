"""What this machine must have: Python, packages, a compiler that works for artifacts, CUDA, room, limits.

Nothing here needs a worker's configuration; each function gives its findings and raises nothing.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from engine.build.compiler import check_compiler as try_compiler
from tools.doctor.findings import Finding, fail, ok, warn

NEEDED_FREE_GB = 3.0  # the demo's model and artifact, and what the compiler writes on its way
NEEDED_FILES = 1024  # sockets to brokers, weights mapped file by file
SMI_SECONDS = 4.0


def check_python() -> Iterator[Finding]:
    """The interpreter that runs this."""
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    yield ok("python", f"{platform.python_version()} on {system}")


def check_packages() -> Iterator[Finding]:
    """Every package that boundgen declares is there in a version that it allows."""
    wrong = []
    for line in metadata.requires("boundgen") or ():
        needed = Requirement(line)
        if needed.marker and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{needed.name} is missing (needs {needed.specifier})")
            continue
        if not needed.specifier.contains(Version(found), prereleases=True):
            wrong.append(f"{needed.name} {found} (needs {needed.specifier})")
    if wrong:
        yield fail("packages", "; ".join(wrong), "pip install --upgrade boundgen")
    else:
        shown = ("torch", "transformers", "aiokafka", "redis")
        yield ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in shown))


def check_cuda(device: str | None) -> Iterator[Finding]:
    """CUDA, its driver and the cards. `device`: what the worker is to use, if known."""
    wants_cuda = device is not None and device.startswith("cuda")
    if not torch.cuda.is_available():
        driver = _driver_version()
        detail = f"torch {torch.__version__} sees no CUDA device (driver: {driver or 'none'})"
        if wants_cuda:
            mend = "install a torch for CUDA that fits the driver (see nvidia-smi), or set engine.device: cpu"
            yield fail("cuda", f"engine.device = {device!r}, but {detail}", mend)
        elif driver and torch.version.cuda:
            yield warn("cuda", detail, "the driver may be older than this torch needs; nvidia-smi shows it")
        else:
            yield ok("cuda", f"{detail}; the CPU engine is used ({torch.backends.cpu.get_cpu_capability()})")
        return
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        detail = f"cuda:{index} {card.name}, sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB"
        yield ok("cuda", f"{detail}, CUDA {torch.version.cuda}, driver {_driver_version() or 'unknown'}")


def check_compiler() -> Iterator[Finding]:
    """The C++ compiler that `boundgen build` will use. Serving a built artifact needs none."""
    found = try_compiler()
    if found.ok:
        yield ok("compiler", f"{found.path}: {found.version}, links libstdc++ dynamically")
    else:
        yield fail("compiler", f"{found.path or 'none'} {found.version}".strip(), found.how_to_mend)


def _driver_version() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None


def check_room(cache: Path) -> Iterator[Finding]:
    """Free space where models and artifacts are kept, and how many files a process may open."""
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(folder).free / 1e9
    if not os.access(folder, os.W_OK):
        yield fail("disk", f"{folder} cannot be written", "set BOUNDGEN_CACHE to a folder of yours")
    elif free < NEEDED_FREE_GB:
        yield warn(
            "disk", f"{free:.1f} GB free at {folder}", "free some, or set BOUNDGEN_CACHE to another disk"
        )
    else:
        yield ok("disk", f"{free:.0f} GB free at {folder}")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < NEEDED_FILES:
        yield warn(
            "open files",
            f"limit {soft}",
            f"raise it: ulimit -n {NEEDED_FILES * 4}, or LimitNOFILE= in systemd",
        )
    else:
        yield ok("open files", f"limit {'none' if soft == resource.RLIM_INFINITY else soft}")
