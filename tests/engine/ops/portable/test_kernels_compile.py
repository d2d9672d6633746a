"""Every kernel compiles for sm_80 and sm_90, and what has tiles for sm_120, without a GPU, within the shared
memory there, and spills nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed: kernels cannot be compiled here")

SHARED_BYTES = {80: 166_912, 90: 232_448, 120: 101_376}  # the most a block may have: 163, 227, 99 KiB
TILED = ("gate_up", "linear_int8", "kept_attention", "product_norm")  # by how much that is
TYPES = {
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv", torch.bool: "*i1", torch.int8: "*i8",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "launch_pdl")


def compile_for(launch: Any, arch: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(launch.kernel.arg_names)
    constants = {k: v for k, v in launch.constants.items() if k not in OPTIONS}
    # explicit, since Triton 3.9 warns that its default will change
    options = {"enable_fp_fusion": True} | {k: v for k, v in launch.constants.items() if k in OPTIONS}
    signature = {
        name: TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        for name, value in zip(names, launch.args, strict=False)
    }
    # a launch makes a constant of every 1
    constants |= {
        name: 1
        for name, value in zip(names, launch.args, strict=False)
        if not isinstance(value, torch.Tensor) and value == 1
    }
    signature |= dict.fromkeys(constants, "constexpr")
    # what every real argument has: pointers and strides of whole 16-byte units
    attrs = {
        (i,): [["tt.divisibility", 16]]
        for i, value in enumerate(launch.args)
        if isinstance(value, torch.Tensor) or value % 16 == 0
    }
    source = ASTSource(launch.kernel, signature, constants, attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def count_spills(ptx: str, arch: int, folder: Path) -> int:
    """Bytes that ptxas spills, from its own report."""
    from triton.backends.nvidia.compiler import get_ptxas

    tool = get_ptxas(arch)
    path = tool.path if hasattr(tool, "path") else tool[0]
    (folder / "kernel.ptx").write_text(ptx)
    suffix = "a" if arch >= 90 else ""
    command = [path, "-v", f"--gpu-name=sm_{arch}{suffix}", "kernel.ptx", "-o", "kernel.cubin"]
    report = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill", report))


@pytest.mark.parametrize("arch", [80, 90, 120])
def test_kernel_compiles_without_spills(case: Any, arch: int, record: Any, tmp_path: Path) -> None:
    if arch == 80 and case.needs_e4m3:
        pytest.skip("sm_80 has no e4m3")
    if arch == 120 and (case.module not in TILED or "qwen3" not in case.name):
        pytest.skip("the same code as for sm_80 or sm_90")
    for launch in record(case, arch):
        compiled = compile_for(launch, arch)
        assert compiled.metadata.shared <= SHARED_BYTES[arch]
        assert count_spills(compiled.asm["ptx"], arch, tmp_path) == 0
