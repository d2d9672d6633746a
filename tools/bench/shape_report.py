"""What `bench engine --shape` says before it times anything: the physics, the card's ceilings, the load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.architecture import Architecture
from tools.bench.peaks import Peaks
from tools.bench.shapes import count_work, ideal_s, least_bytes

SAMPLES, LENGTH = 27, 150  # what fills 4,096 tokens


def physics(a: Architecture, narrow: Mapping[str, float], peaks: Peaks | None) -> dict[str, Any]:
    """Of SAMPLES samples of LENGTH tokens: FLOPs by class, bytes that must be read, and the floor: the longer
    of the two at the card's peaks, None where these are not known."""
    work, tokens = count_work(a, [LENGTH] * SAMPLES), SAMPLES * LENGTH
    num_bytes = least_bytes(a, tokens, narrow)
    found: dict[str, Any] = {
        "samples": SAMPLES, "tokens": tokens, "flops": work.by_class(),
        "flops_8_bits": work.in_8_bits(narrow), "bytes": num_bytes,
        "compute_ms": None, "memory_ms": None, "floor_ms": None,
    }  # fmt: skip
    if peaks is not None:
        compute, memory = 1e3 * ideal_s(work, narrow, peaks), 1e3 * num_bytes / peaks.memory
        found |= {"compute_ms": compute, "memory_ms": memory, "floor_ms": max(compute, memory)}
    return found


def physics_lines(found: Mapping[str, Any]) -> list[str]:
    flops = found["flops"]
    total = sum(flops.values())
    kinds = ", ".join(f"{kind} {count / total:.0%}" for kind, count in flops.items())
    lines = [
        f"physics: {found['samples']} samples, {found['tokens']} tokens: {total / 1e12:.2f} TFLOP ({kinds}), "
        f"{found['flops_8_bits'] / total:.0%} in 8 bits; {found['bytes'] / 1e9:.2f} GB to read"
    ]
    if found["floor_ms"] is None:
        lines.append("floor: not known, this card's peaks are not in tools/bench/peaks.py")
    else:
        lines.append(
            f"floor: {found['floor_ms']:.3f} ms at dense peaks (memory {found['memory_ms']:.3f} ms): "
            f"{found['tokens'] / found['floor_ms']:,.0f}k tokens/s"
        )
    return lines


def ceiling_line(ceilings: Mapping[str, float]) -> str:
    names = {"copy_tbps": "copy {:.2f} TB/s", "gemm_bf16_tflops": "bf16 GEMM {:.0f} TFLOP/s"}
    names["gemm_fp8_tflops"] = "fp8 GEMM {:.0f} TFLOP/s"
    told = [text.format(ceilings[key]) for key, text in names.items() if key in ceilings]
    return f"ceilings, sustained: {', '.join(told)}"


def load_line(load: Mapping[str, Any]) -> str:
    lanes = ", ".join(f"{each / 1e9:.2f}" for each in load["lane_bytes"])
    told = (
        f"load: {load['seconds']:.1f} s, {load['graphs']} graphs, weights "
        f"{load['weights_bytes'] / 1e9:.2f} GB shared by all lanes, lane by lane {lanes} GB"
    )
    if not load["sharing"]:
        return told
    gains = ", ".join(
        f"{each['tokens']}: {each['alone_ms']:.3f}/{each['together_ms']:.3f}/{each['halved_ms']:.3f}"
        for each in load["sharing"]
    )
    sizes = load["shared_tokens"]
    chosen = f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens" if sizes else "none"
    return (
        f"{told}; lanes at once, ms a batch alone/together/on half the chip each: {gains}; chosen: {chosen}"
    )


def launch_line(launch: Mapping[str, Any]) -> str:
    return (
        f"launches: {launch['launches']}, Python's part of one mean {launch['python_mean_ms']:.3f} ms, "
        f"most {launch['python_max_ms']:.3f} ms (processor time)"
    )
