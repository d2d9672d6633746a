"""What `bench engine --shape` measures: its options as plain values, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.build.spec import Kernels, Precision
from engine.packed import BatchBounds
from tools.bench.bucket_timing import LENGTHS
from tools.bench.mixes import MIXES
from tools.bench.shapes import SHAPES
from tools.errors import UserError

BOUNDS = BatchBounds(256, 8192, 512)  # of the artifact
PRECISIONS = ("bf16", "fp8", "int8")  # random weights have no accuracy to choose by
MOST_IN_FLIGHT = 10_000


@dataclass(frozen=True)
class ShapeSetup:
    """`tokens`: sizes that are timed one by one, each of `lengths`, back to back for `sustained` seconds;
    `in_flight`: requests of each closed loop of `seconds`, for each of `mixes`. `classes`: whether kernels
    are recorded. UserError names the option and its value."""

    shape: str
    precision: Precision
    kernels: Kernels = "fastest"
    lanes: int = 2
    tokens: Sequence[int] = (512, 1024, 2048, 4096, 8192)
    lengths: Sequence[str] = LENGTHS
    mixes: Sequence[str] = MIXES
    in_flight: Sequence[int] = (1, 2, 4, 6, 8, 12, 16)
    seconds: float = 1.0
    sustained: float = 1.0
    classes: bool = True

    def __post_init__(self) -> None:
        for key, values, known in (
            ("shape", [self.shape], sorted(SHAPES)),
            ("precision", [self.precision], PRECISIONS),
            ("lengths", self.lengths, LENGTHS),
            ("mixes", self.mixes, MIXES),
        ):
            for value in values:
                if value not in known:
                    raise UserError(f"--{key} = {value!r}: must be one of {', '.join(known)}")
        sizes = (("tokens", self.tokens, BOUNDS.tokens), ("in-flight", self.in_flight, MOST_IN_FLIGHT))
        for key, numbers, most in sizes:
            for number in numbers:
                if not 1 <= number <= most:
                    raise UserError(f"--{key} = {number}: must be from 1 to {most}")


def read_lists(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Lists of a ShapeSetup by field, as on a command line: "1024,4096", or nothing for an empty list. What
    is None is left out; UserError for what is no whole number."""
    found: dict[str, Any] = {}
    for key, text in texts.items():
        if text is None:
            continue
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        try:
            found[key] = parts if key in ("lengths", "mixes") else tuple(map(int, parts))
        except ValueError:
            option = key.replace("_", "-")
            raise UserError(f"--{option} = {text!r}: must be whole numbers with commas between") from None
    return found
