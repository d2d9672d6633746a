"""The accuracy half of a build: every scheme measured on texts, a plan chosen within a budget. No GPU needed.

All numbers are of an emulation on the CPU and of an estimate of speed, and say so. Calibration, choice and
judgement use disjoint requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.chart import Dot, draw
from engine.quant.choice import choose
from engine.quant.emulation import Place
from engine.quant.floats import Bf16Matrix
from engine.quant.int8 import ExactRows, Int8Matrix
from engine.quant.laboratory import Laboratory, Model
from engine.quant.requests import TextSets
from engine.quant.rotation import why_not
from engine.quant.rows import STREAM, Matrix
from engine.quant.schemes import KINDS, ROTATED, Scheme, unserved
from engine.quant.sensitivity import Sensitivity, measure_sensitivity
from engine.quant.speed import matrix_us, plan_us

METHOD = "emulated on a CPU in plain torch: integer sums exact, tensors stored in bf16; speed is an estimate"
SENSITIVITY_TEXTS, GROUPS = 64, 10
CAUTION = 0.9  # of the budget while choosing: other texts differ by a tenth
Say = Callable[[str], None]


@dataclass(frozen=True)
class PlanResult:
    """One plan on the judging texts. `speed` of the layers, an estimate, bf16 is 1; `eight_bits`: a share."""

    name: str
    agreement: Agreement
    speed: float
    eight_bits: float


@dataclass(frozen=True)
class Study:
    """`layers`: scheme of each kind in each layer that `auto` chose; `notes`: what stays bf16 and why."""

    method: str
    budget: Budget
    results: tuple[PlanResult, ...]
    sensitivity: dict[str, tuple[Sensitivity, ...]]
    layers: tuple[dict[str, str], ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def draw(self, title: str) -> str:
        """SVG of all results."""
        dots = [
            Dot(each.name, each.speed, each.agreement.next_token_kl, each.name == "auto")
            for each in self.results
        ]
        return draw(title, dots, self.budget.kl)

    @property
    def auto(self) -> PlanResult:
        return next(each for each in self.results if each.name == "auto")


@dataclass(frozen=True)
class Chosen:
    """A plan of one scheme and bf16, and its estimated time."""

    scheme: Scheme
    plan: dict[Place, Scheme]
    matrices: dict[Place, Matrix]
    us: float
    sensitivity: tuple[Sensitivity, ...] = ()


def run_study(
    model: Model, texts: TextSets, schemes: Sequence[Scheme], budget: Budget, say: Say = lambda _: None
) -> Study:
    """Measure `schemes` (bf16 is always measured) whole, and choose among them; minutes for a small model."""
    notes, served = _served(model, schemes)
    laboratory = Laboratory(model, texts.calibrate, say)
    laboratory.prepare(["bf16", *served])
    results = []
    bf16_us = plan_us(model.architecture, {})
    for scheme in ("bf16", *served):
        say(f"measuring {scheme}")
        matrices = laboratory.matrices(scheme)
        plan = _plan_of(matrices, scheme)
        agreement = laboratory.measure(texts.judge, matrices, rotated=scheme in ROTATED)
        us = plan_us(model.architecture, plan, _exact(matrices))
        results.append(PlanResult(scheme, agreement, bf16_us / us, len(plan) / len(matrices)))
    sensitivity: dict[str, tuple[Sensitivity, ...]] = {}
    best = Chosen("bf16", {}, laboratory.matrices("bf16"), bf16_us)
    for scheme in served:
        found = choose_plan(laboratory, texts, scheme, budget, say)
        sensitivity[scheme] = found.sensitivity
        best = min(best, found, key=lambda each: each.us)
    say("measuring the chosen plan")
    agreement = laboratory.measure(texts.judge, best.matrices, rotated=best.scheme in ROTATED)
    if best.plan and (reason := budget.broken(agreement)) is not None:
        notes.append(f"auto: the plan chosen on other texts is over the budget on these ({reason}): bf16")
        best, agreement = Chosen("bf16", {}, {}, bf16_us), results[0].agreement
    share = len(best.plan) / (4 * model.architecture.num_layers)
    results.append(PlanResult("auto", agreement, bf16_us / best.us, share))
    layers: tuple[dict[str, str], ...] = tuple(
        {kind: best.plan.get((layer, kind), "bf16") for kind in KINDS}
        for layer in range(model.architecture.num_layers)
    )
    return Study(METHOD, budget, tuple(results), sensitivity, layers, tuple(notes))


def _served(model: Model, schemes: Sequence[Scheme]) -> tuple[list[str], list[Scheme]]:
    """Notes, and the schemes that this model can have at all."""
    notes: list[str] = []
    served: list[Scheme] = []
    for scheme in schemes:
        if scheme == "bf16":
            continue
        if scheme in ROTATED and (reason := why_not(model.weights)) is not None:
            notes.append(f"{scheme}: refused, {reason}")
            continue
        notes += [
            f"{scheme}: {kind} stays bf16, {why}"
            for kind, why in unserved(scheme, model.architecture).items()
        ]
        served.append(scheme)
    return notes, served


def choose_plan(laboratory: Laboratory, texts: TextSets, scheme: Scheme, budget: Budget, say: Say) -> Chosen:
    """The fastest plan of `scheme` and bf16 that holds the budget on the texts to choose by."""
    architecture, rotated = laboratory.model.architecture, scheme in ROTATED
    matrices = laboratory.matrices(scheme)
    decoder = laboratory.decoder(rotated)
    rest = laboratory.rest(scheme)
    exact = _exact(matrices)
    groups = measure_sensitivity(
        decoder, laboratory.model.head, texts.choose[:SENSITIVITY_TEXTS], matrices,
        layers_a_group=max(1, -(-architecture.num_layers // GROUPS)), say=say,
    )  # fmt: skip

    def saved(group: Sensitivity) -> float:
        return sum(
            matrix_us(architecture, kind, "bf16")
            - matrix_us(architecture, kind, scheme, exact=(layer, kind) in exact)
            for layer, kind in group.places
            if not isinstance(matrices[layer, kind], Bf16Matrix)
        )

    def mixed(chosen: Sequence[Sensitivity]) -> dict[Place, Matrix]:
        return rest | {place: matrices[place] for group in chosen for place in group.places}

    def measure(chosen: Sequence[Sensitivity]) -> Agreement:
        say(f"measuring {scheme} in {len(chosen)} of {len(groups)} groups")
        return laboratory.measure(texts.choose, mixed(chosen), rotated=rotated)

    cautious = Budget(CAUTION * budget.label_shift, CAUTION * budget.kl)
    chosen, _ = choose(groups, saved, cautious, measure)
    plan = _plan_of(mixed(chosen), scheme)
    us = plan_us(architecture, plan, exact)
    return Chosen(scheme, plan, mixed(chosen), us, tuple(groups))


def _plan_of(matrices: dict[Place, Matrix], scheme: Scheme) -> dict[Place, Scheme]:
    return {place: scheme for place, matrix in matrices.items() if not isinstance(matrix, Bf16Matrix)}


def _exact(matrices: dict[Place, Matrix]) -> frozenset[Place]:
    """Places whose residual scale needs a pass of its own."""
    return frozenset(
        place for place, matrix in matrices.items()
        if place[1] in STREAM and isinstance(matrix, Int8Matrix) and isinstance(matrix.rule, ExactRows)
    )  # fmt: skip
