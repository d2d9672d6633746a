"""What a card could do at most, from its data sheet: dense products without sparsity, and its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """FLOP/s in bf16 and in 8 bits (e4m3 and int8 alike), bytes/s of the memory."""

    bf16: float
    fp8: float
    memory: float


PEAKS = {
    "NVIDIA H200": Peaks(989e12, 1979e12, 4.8e12),
    "NVIDIA H100 80GB HBM3": Peaks(989e12, 1979e12, 3.35e12),
}


def peaks_of(name: str) -> Peaks | None:
    """By the name that torch gives a card; None: not known here, so no MFU can be said."""
    return PEAKS.get(name)
