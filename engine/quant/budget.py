"""How far answers may move for speed: what `precision: auto` and a build's own check are held to.

Defaults, with their reason: bf16 alone moves a label of SmolLM2-135M by 0.03 (log-probability) and the next
token's distribution by 0.0009 (KL); every model is trained and published at about that noise. 0.05 is less
than twice it, a quarter of the margin (0.2) under which we call two labels equally likely, and 5% of a
probability; 0.004 is what goes with it. bf16 alone loses 4% of the 100 winners of a search: 0.9 of them is
about twice that.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from engine.quant.agreement import Agreement


@dataclass(frozen=True)
class Budget:
    """Most mean label shift, most mean KL of the next token (engine.quant.agreement), least share of a
    search's winners (engine.quant.ranks)."""

    label_shift: float = 0.05
    kl: float = 0.004
    winners: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.winners <= 1:
            raise ConfigError("min_winners", self.winners, "must be from 0 to 1")
        for key in ("label_shift", "kl"):
            if not getattr(self, key) >= 0:
                raise ConfigError(f"max_{key}", getattr(self, key), "must be 0 or more")

    def broken(self, found: Agreement) -> str | None:
        """What is over the budget, or None. Written so that a NaN is over it."""
        if found.label_shift is not None and not found.label_shift <= self.label_shift:
            return f"mean label shift {found.label_shift:.4f}, allowed {self.label_shift:g}"
        if not found.next_token_kl <= self.kl:
            return f"mean KL {found.next_token_kl:.5f}, allowed {self.kl:g}"
        if found.ranks is not None and not found.ranks.winners >= self.winners:
            return f"winners of a search shared {found.ranks.winners:.3f}, wanted {self.winners:g}"
        return None

    def share(self, kl: float, label_shift: float | None) -> float:
        """The part of the budget that one independent error takes: KL adds up, shifts add up squared."""
        shift = 0.0 if label_shift is None else (label_shift / max(self.label_shift, 1e-9)) ** 2
        return max(kl / max(self.kl, 1e-9), shift)
