"""What this card does at best: a large copy, and the library's GEMMs, on random data, in a burst and
sustained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

BURST_GAP_S = 0.01  # lets the card cool between two bursts


@dataclass(frozen=True)
class Timing:
    """Median of single runs with pauses, and the mean of back-to-back ones, milliseconds."""

    burst_ms: float
    sustained_ms: float


def time_device(run: Callable[[], object], *, sustained_ms: float = 500.0, bursts: int = 9) -> Timing:
    """`run` only enqueues work on the current stream."""
    run()
    torch.cuda.synchronize()
    singles = []
    for _ in range(bursts):
        time.sleep(BURST_GAP_S)
        singles.append(_elapsed(run, 1))
    burst = sorted(singles)[bursts // 2]
    return Timing(burst, _elapsed(run, max(3, round(sustained_ms / burst))))


def measure_ceilings() -> dict[str, float]:
    """copy_tbps (read plus written), bf16 and fp8 TFLOP/s of 8192³ products, sustained."""
    found = {"copy_tbps": _measure_copy()}
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3
    found["gemm_bf16_tflops"] = flops / time_device(lambda: a @ b.t()).sustained_ms / 1e9
    if torch.cuda.get_device_capability() >= (8, 9):
        x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones(1, device="cuda")

        def product() -> object:
            return torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        found["gemm_fp8_tflops"] = flops / time_device(product).sustained_ms / 1e9
    return found


def _measure_copy() -> float:
    source = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_device(lambda: target.copy_(source), sustained_ms=50).sustained_ms / 1e9


def _elapsed(run: Callable[[], object], times: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    elapsed: float = start.elapsed_time(end)
    return elapsed / times
