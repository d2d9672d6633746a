"""Vectors in a reply's rows: a list of numbers, or float32 little-endian bytes at a quarter of the cost."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from schemas.plain import quote


def pack_vector(values: Iterable[float]) -> bytes:
    """float32 little-endian bytes. Raises ValueError for what is not finite in float32."""
    packed = array("f", values)
    if not isfinite(sum(packed)):
        odd = next((value for value in packed if not isfinite(value)), None)
        if odd is not None:
            raise ValueError(f"vector: {odd} is not a finite number")
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def read_vector(value: Any) -> Sequence[float]:
    """The numbers of a row's vector in either form. Raises ValueError for anything else."""
    if isinstance(value, bytes) and len(value) % 4 == 0:
        packed = array("f", value)
        if sys.byteorder == "big":
            packed.byteswap()
        return packed
    if isinstance(value, (list, tuple)) and set(map(type, value)) <= {int, float}:
        return value
    raise ValueError(f"vector: {quote(value)} is neither a list of numbers nor float32 bytes")
