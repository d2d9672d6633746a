"""Where a number comes from: machine, versions and commit, for the JSON line of every benchmark."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

GIT_SECONDS = 10
DRIVER = Path("/proc/driver/nvidia/version")


def provenance(device: str) -> dict[str, object]:
    """Plain values that go into the JSON line beside the results."""
    return {
        **(_cuda() if device.startswith("cuda") else {}),
        "machine": machine(device),
        "load_average": round(os.getloadavg()[0], 2),  # of the last minute, itself included
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in ("transformers", "aiokafka", "boundgen")},
        "commit": commit(),
    }


def machine(device: str) -> str:
    """The card's name, or the processor's with its number of CPUs and vector instructions."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} CPUs, {torch.backends.cpu.get_cpu_capability()}"


def command_line() -> str:
    """What this process was started as, for a shell."""
    program = Path(sys.argv[0]).name
    return shlex.join([program, *sys.argv[1:]])


def commit() -> str:
    """The commit of the source that runs, with + where files were changed since; "unknown" outside of git."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _cuda() -> dict[str, object]:
    return {"cuda": torch.version.cuda, "driver": _driver(), "triton": _version("triton")}


def _driver() -> str | None:
    """The kernel module's version, as 580.95.05."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", DRIVER.read_text())
    except OSError:
        return None
    return found[0] if found else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # runs from a source folder, or needs less than all
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
