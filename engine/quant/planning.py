"""Plans that mix schemes: which families there are, and the fastest plan of one that holds a budget.

A matrix' input is quantised by whatever makes it for that one matrix, so any matrix may have any scheme
beside any other; only the form of the decoder (engine.quant.schemes) is common to all of it.

    int8          the stream rotated, int8 anywhere: what serves where most of the model is to be in 8 bits
    int8+e4m3     the stream in its own channels, whose bf16 is the more exact one; int8 for what does not
                  read the stream, e4m3 for what does
    e4m3_*        nothing rotated, e4m3 anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.choice import Choice, choose, step_back
from engine.quant.emulation import Place
from engine.quant.floats import Bf16Matrix
from engine.quant.int8 import ExactRows, Int8Matrix
from engine.quant.laboratory import Laboratory
from engine.quant.rows import STREAM, Matrix
from engine.quant.schemes import KINDS, ROTATED, Form, Scheme
from engine.quant.sensitivity import Sensitivity, measure_sensitivity
from engine.quant.texts import Text, spread
from engine.quant.times import Times

GROUPS = 10  # of layers, at most
SENSITIVITY_TEXTS, SENSITIVITY_TOKENS = 32, 4096  # they order the groups; a plan is measured on more
SLOW = 0.8  # share of the time saved by e4m3: below it int8 is slow
CAUTION = 0.9  # of the budget while choosing: other texts differ by a tenth
Say = Callable[[str], None]


@dataclass(frozen=True)
class Family:
    """`schemes`: of each kind of matrix where it is in 8 bits, which kinds without stay bf16."""

    name: str
    form: Form
    schemes: Mapping[str, Scheme]

    def with_integers(self, scheme: Scheme) -> Family:
        """The same with another scheme for what is in int8."""
        mine = {kind: scheme if each in ROTATED else each for kind, each in self.schemes.items()}
        return replace(self, schemes=mine)

    def matrices(self, laboratory: Laboratory) -> dict[Place, Matrix]:
        """All in 8 bits that can be."""
        laboratory.prepare(self.form, list(self.schemes.values()))
        found = dict(laboratory.matrices("bf16", self.form))
        for kind, scheme in self.schemes.items():
            found |= {p: m for p, m in laboratory.matrices(scheme, self.form).items() if p[1] == kind}
        return found


INT8 = Family("int8", "stream", dict.fromkeys(KINDS, "int8"))
STILL = Family(
    "int8+e4m3", "heads",
    {"output": "int8", "down": "int8", "qkv": "e4m3_static", "gate_up": "e4m3_static"},
)  # fmt: skip


def families(schemes: Sequence[Scheme], times: Times) -> list[Family]:
    """What may be chosen from where these schemes have kernels. e4m3 alone stands beside int8 where int8 is
    slower by far; elsewhere it is in the mix, wherever int8 does not keep answers better."""
    integers: Scheme | None = next((each for each in schemes if each in ROTATED), None)
    plain = [Family(each, "plain", dict.fromkeys(KINDS, each)) for each in schemes if each.startswith("e4m3")]
    if integers is None:
        return plain
    still = STILL
    if "e4m3_static" not in schemes:
        still = Family("int8, still", "heads", {"output": "int8", "down": "int8"})
    mixed = [INT8.with_integers(integers), still.with_integers(integers)]
    most = sum(times.saved_us(kind, integers) for kind in KINDS) / SLOW
    return [
        *mixed,
        *(each for each in plain if most < sum(times.saved_us(k, each.schemes[k]) for k in KINDS)),
    ]


@dataclass(frozen=True)
class Chosen:
    """A plan of 8 bits and bf16 in one form, and its time."""

    family: Family
    plan: dict[Place, Scheme]
    matrices: dict[Place, Matrix]
    us: float


class Planner:
    """One family's matrices and sensitivities, and the choice among them."""

    def __init__(
        self, laboratory: Laboratory, family: Family, texts: Sequence[Text], times: Times, say: Say
    ) -> None:
        """`texts`: to choose by."""
        self.family = family
        self._laboratory, self._texts, self._times, self._say = laboratory, texts, times, say
        self._matrices = family.matrices(laboratory)
        self._rest = laboratory.matrices("bf16", family.form)
        self._exact = exact_places(self._matrices)
        architecture, served = laboratory.model.architecture, laboratory.serving.kinds
        self.groups = measure_sensitivity(
            laboratory.decoder(family.form), laboratory.model.head,
            spread(texts, SENSITIVITY_TOKENS, SENSITIVITY_TEXTS),
            self._matrices, kinds=[kind for kind in family.schemes if kind in served], say=say,
            layers_a_group=max(1, -(-architecture.num_layers // GROUPS)),
        )  # fmt: skip

    def choose(self, budget: Budget) -> Choice:
        """On the texts to choose by, within a little less than the budget."""
        cautious = replace(budget, label_shift=CAUTION * budget.label_shift, kl=CAUTION * budget.kl)
        return choose(self.groups, self._saved, cautious, lambda chosen: self.measure(self._texts, chosen))

    def verify(self, choice: Choice, budget: Budget, texts: Sequence[Text]) -> tuple[Chosen, Agreement]:
        """On texts that did not choose, with fewer groups where that takes it."""
        groups, found = step_back(choice, budget, lambda chosen: self.measure(texts, chosen))
        return self.plan(groups), found

    def plan(self, groups: Sequence[Sensitivity]) -> Chosen:
        layers, schemes = self._laboratory.model.architecture.num_layers, self.family.schemes
        matrices = self._mixed(groups)
        plan = {p: schemes[p[1]] for p, m in matrices.items() if not isinstance(m, Bf16Matrix)}
        return Chosen(self.family, plan, matrices, self._times.plan_us(layers, plan, self._exact))

    def measure(self, texts: Sequence[Text], groups: Sequence[Sensitivity]) -> Agreement:
        self._say(f"measuring {self.family.name} in {len(groups)} of {len(self.groups)} groups")
        return self._laboratory.measure(texts, self._mixed(groups), form=self.family.form)

    def _mixed(self, groups: Sequence[Sensitivity]) -> dict[Place, Matrix]:
        return self._rest | {place: self._matrices[place] for group in groups for place in group.places}

    def _saved(self, group: Sensitivity) -> float:
        scheme = self.family.schemes[group.kind]
        return sum(
            self._times.saved_us(group.kind, scheme, exact=place in self._exact)
            for place in group.places
            if not isinstance(self._matrices[place], Bf16Matrix)
        )


def exact_places(matrices: Mapping[Place, Matrix]) -> frozenset[Place]:
    """Places whose residual scale needs a pass of its own."""
    return frozenset(
        place for place, matrix in matrices.items()
        if place[1] in STREAM and isinstance(matrix, Int8Matrix) and isinstance(matrix.rule, ExactRows)
    )  # fmt: skip
