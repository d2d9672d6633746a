"""What of a model may be in 8 bits where it will be served, whatever the scheme."""

from __future__ import annotations

from dataclasses import dataclass

from engine.quant.schemes import KINDS


@dataclass(frozen=True)
class Serving:
    """`kinds` of matrices that leave bf16; `narrow_head`: a search's head may be in e4m3 beside them."""

    kinds: tuple[str, ...] = KINDS
    narrow_head: bool = False
