"""Bounds of a search: the most that one batch of an artifact's beams may hold. Fixed at build."""

from __future__ import annotations

from dataclasses import dataclass

MAX_WIDTH, MAX_STEPS, MAX_PROMPT = 512, 8, 2048


@dataclass(frozen=True)
class BeamBounds:
    """`width` beams of `steps` + 1 tokens for each of `prompts`; the suffixes take memory for all."""

    width: int
    steps: int
    prompts: int

    def __post_init__(self) -> None:
        for key, most in (("width", MAX_WIDTH), ("steps", MAX_STEPS), ("prompts", None)):
            value = getattr(self, key)
            if value < 1 or (most is not None and value > most):
                wanted = "at least 1" if most is None else f"from 1 to {most}"
                raise ValueError(f"beam.{key} = {value!r}: must be {wanted}")

    @property
    def rows(self) -> int:
        """Beams of one batch; two at least, as a compiled package treats one as special."""
        return max(2, self.width) * self.prompts
