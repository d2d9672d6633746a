"""What of a model may be in 8 bits where it will be served, whatever the scheme."""

from __future__ import annotations

from dataclasses import dataclass

from engine.quant.schemes import KINDS


@dataclass(frozen=True)
class Serving:
    """`kinds` of matrices that leave bf16; `narrow_head`: a search's head is in e4m3 where any matrix is in 8
    bits."""

    kinds: tuple[str, ...] = KINDS
    narrow_head: bool = False
