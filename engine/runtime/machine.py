"""What this machine can run, in the words that a manifest uses.

A package for the CPU is compiled for the processor that built it; another one may lack an instruction and
would end the process at the first run. So the features are recorded at build and compared at load.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

# The instruction sets a compiler may use; the rest of /proc/cpuinfo says nothing about compiled code.
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|amx|sve|asimd|bmi)\w*"
    r"|fma|f16c|abm|movbe|popcnt|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni|adx|fp16|bf16|i8mm"
)
_CPUINFO = Path("/proc/cpuinfo")


def device_arch(device: torch.device) -> str:
    """ "x86_64-AVX512" or "sm_90"; RuntimeError where torch has no such device."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    return f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}"


def cpu_features() -> tuple[str, ...]:
    """Instruction sets of this processor, sorted; empty where the system does not say."""
    if not _CPUINFO.exists():
        return ()
    for line in _CPUINFO.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return tuple(sorted({flag for flag in value.split() if _INSTRUCTIONS.fullmatch(flag)}))
    return ()


def torch_release() -> str:
    """ "2.13": what a compiled package is bound to."""
    return ".".join(torch.__version__.split(".")[:2])
