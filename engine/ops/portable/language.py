"""Triton where it is installed, and how an operation on top of it is registered.

CPU builds of torch come without Triton: modules of operations still import there, and their CPU kernels, the
oracles, run. Registering happens at import, once a process; nothing else here keeps state.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

__all__ = [
    "capability", "cdiv", "has_large_blocks", "jit", "let_next_start", "next_power_of_2", "register",
    "starts_early", "tl", "wait_for_last",
]  # fmt: skip

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU-only machines
    triton = None
    tl = SimpleNamespace(constexpr=object)  # what signatures of kernels name

try:
    from triton.language.extra.cuda import gdc_launch_dependents as let_next_start
    from triton.language.extra.cuda import gdc_wait as wait_for_last
except ImportError:  # nor may a Triton have these: then no kernel starts early
    let_next_start = wait_for_last = None


def jit(kernel: Callable[..., None]) -> Any:
    """triton.jit; without Triton the bare function, which nobody calls."""
    return kernel if triton is None else triton.jit(kernel)


def register(
    name: str, *, allocate: Callable[..., Any], cpu: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: boundgen::`name`, its launcher traced into whatever compiles a graph that holds the
    operation.

    The launcher may only call torch operations and wrap_triton(kernel)[grid](...). `allocate` takes the
    same arguments and returns empty outputs: what tracing sees. `cpu` computes the same in plain torch, so
    that one exported graph runs on both. The bare launcher stays reachable as `.launch`, for tests without
    a device. Where there is none the operation stays whole when it is traced: Triton's compiler needs one.
    """

    def decorate(launch: Callable[..., Any]) -> Callable[..., Any]:
        whole = triton is None or not torch.cuda.is_available()
        define = torch.library.custom_op if whole else torch.library.triton_op
        operation: Any = define(f"boundgen::{name}", launch, mutates_args=())
        operation.register_kernel("cpu")(cpu)
        operation.register_fake(allocate)
        operation.launch = launch
        call: Callable[..., Any] = operation
        return call

    return decorate


def capability(x: torch.Tensor) -> int:
    """Of the device that a kernel is built for, as in sm_90: 90. Without a device, where only its source
    counts, 90."""
    if x.device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(x.device)
    return 10 * major + minor


def starts_early(x: torch.Tensor) -> bool:
    """Whether a kernel can start while the last one runs (programmatic dependent launch), as launch_pdl
    asks."""
    return wait_for_last is not None and capability(x) >= 90


def has_large_blocks(arch: int) -> bool:
    """Whether a block may have 227 KiB of shared memory; it is 99 to 163 before sm_90, and 99 from sm_120
    on."""
    return 90 <= arch < 120


def cdiv(a: int, b: int) -> int:
    """ceil(a / b); also of symbolic sizes."""
    return (a + b - 1) // b


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
