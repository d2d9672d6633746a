"""What a build's 8-bit matrices are rounded on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.quant.preparation import Prepared
from engine.quant.schemes import Form
from engine.quant.texts import Text


@dataclass(frozen=True)
class Rounding:
    """`texts`: of the user's own; `form`: of a rotated plan; `made`: what a study has rounded on the same
    texts, at most one, taken out by whoever needs it so that nothing of it is held during compilation."""

    texts: Sequence[Text] = ()
    form: Form = "stream"
    made: list[Prepared] = field(default_factory=list)

    def take(self) -> Prepared | None:
        return self.made.pop() if self.made else None
