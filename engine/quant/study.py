"""The accuracy half of a build: every scheme measured on texts, a plan chosen within a budget. No GPU needed.

All numbers are of an emulation, speeds of the times that it is given, and say so. Calibration,
choice and judgement use disjoint requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.chart import Dot, draw
from engine.quant.floats import Bf16Matrix
from engine.quant.laboratory import WHOLE, Laboratory, Model
from engine.quant.planning import Chosen, Family, Planner, exact_places, families
from engine.quant.requests import TextSets
from engine.quant.rotation import why_not
from engine.quant.schemes import KINDS, ROTATED, Form, Scheme, unserved, whole_form
from engine.quant.sensitivity import Sensitivity
from engine.quant.serving import Serving
from engine.quant.texts import Text, spread
from engine.quant.times import Times

METHOD = "emulated in plain torch: integer sums exact, tensors stored in bf16"
CHOOSE_TOKENS, JUDGE_TOKENS = 8192, 32768  # a measurement takes a core 6 ms a token for 100 million weights
PLAIN = Family("bf16", "plain", {})
Say = Callable[[str], None]


@dataclass(frozen=True)
class PlanResult:
    """One plan on the judging texts. `speed` of the layers, bf16 is 1; `eight_bits`: a share."""

    name: str
    agreement: Agreement
    speed: float
    eight_bits: float


@dataclass(frozen=True)
class Study:
    """`times`: that speeds are of; `layers`: scheme of each kind in each layer that `auto` chose, `form`: of
    the decoder that it is of, `narrow_head`: whether its searches have theirs in e4m3; `notes`: what stays
    bf16 and why."""

    method: str
    budget: Budget
    times: Times
    results: tuple[PlanResult, ...]
    sensitivity: dict[str, tuple[Sensitivity, ...]]
    layers: tuple[dict[str, str], ...]
    notes: tuple[str, ...]
    form: Form = "plain"
    narrow_head: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def draw(self, title: str) -> str:
        """SVG of all results."""
        dots = [
            Dot(each.name, each.speed, each.agreement.next_token_kl, each.name == "auto")
            for each in self.results
        ]
        return draw(title, dots, self.budget.kl, f"speed of the layers, {self.times.source}")

    @property
    def counts_winners(self) -> bool:
        """Whether any of its texts are searched from."""
        return any(each.agreement.ranks is not None for each in self.results)

    @property
    def auto(self) -> PlanResult:
        return next(each for each in self.results if each.name == "auto")


def run_study(
    model: Model, texts: TextSets, schemes: Sequence[Scheme], budget: Budget, times: Times,
    say: Say = lambda _: None, serving: Serving = WHOLE, keep: Callable[[Laboratory], None] = lambda _: None,
) -> Study:  # fmt: skip
    """Measure `schemes` (bf16 is always measured) whole, as far as `serving` has them, and choose among their
    families; minutes for a small model. `keep` gets the laboratory, which nobody holds otherwise."""
    judge = tuple(spread(texts.judge, JUDGE_TOKENS))
    texts = TextSets(texts.calibrate, tuple(spread(texts.choose, CHOOSE_TOKENS)), judge)
    notes, served = _served(model, schemes)
    laboratory = Laboratory(model, texts.calibrate, say, serving)
    keep(laboratory)
    laboratory.prepare("plain", [scheme for scheme in served if whole_form(scheme) == "plain"])
    layers = model.architecture.num_layers
    results = []
    bf16_us = times.plan_us(layers, {})
    for scheme in ("bf16", *served):
        matrices = laboratory.matrices(scheme)
        say(f"measuring {scheme}")
        plan = {place: scheme for place, each in matrices.items() if not isinstance(each, Bf16Matrix)}
        narrow = serving.narrow_head and bool(plan)
        agreement = laboratory.measure(texts.judge, matrices, form=whole_form(scheme), narrow_head=narrow)
        us = times.plan_us(layers, plan, exact_places(matrices))
        results.append(PlanResult(scheme, agreement, bf16_us / us, len(plan) / len(matrices)))
    best, agreement, sensitivity = _choose(laboratory, texts, served, budget, times, say)
    if best is None:
        best, agreement = Chosen(PLAIN, {}, {}, bf16_us), results[0].agreement
        if served:
            notes.append("auto: no plan with 8 bits holds the budget: bf16")
    elif best.plan:
        notes.append(f"auto: {best.family.name}, {best.family.form} form")
    narrow_head = False
    if serving.narrow_head and best.plan:
        say("measuring searches with the head in 8 bits")
        agreement, narrow_head, note = _try_head(laboratory, texts.judge, best, agreement, budget)
        notes.append(note)
    share = len(best.plan) / (len(KINDS) * layers)
    results.append(PlanResult("auto", agreement, bf16_us / best.us, share))
    chosen: tuple[dict[str, str], ...] = tuple(
        {kind: best.plan.get((layer, kind), "bf16") for kind in KINDS} for layer in range(layers)
    )
    form = best.family.form if best.plan else "plain"
    method = f"{METHOD}; speed {times.source}"
    return Study(method, budget, times, tuple(results), sensitivity, chosen, tuple(notes), form, narrow_head)


def _try_head(
    laboratory: Laboratory, texts: Sequence[Text], best: Chosen, agreement: Agreement, budget: Budget
) -> tuple[Agreement, bool, str]:
    """The plan's agreement, whether its searches' head is in 8 bits (where that was measured and holds), and
    why."""
    found = laboratory.measure(texts, best.matrices, form=best.family.form, narrow_head=True)
    if found.ranks is None:
        return agreement, False, "auto: the head of searches stays bf16, no winners were measured"
    if budget.broken(found) is not None:
        kept = f"in 8 bits it keeps {found.ranks.winners:.0%} of the winners"
        return agreement, False, f"auto: the head of searches stays bf16, {kept}"
    return found, True, "auto: the head of searches in 8 bits too"


def _choose(
    laboratory: Laboratory, texts: TextSets, served: Sequence[Scheme], budget: Budget, times: Times, say: Say
) -> tuple[Chosen | None, Agreement, dict[str, tuple[Sensitivity, ...]]]:
    """The fastest plan, verified on the judging texts; the next family's where nothing of it holds there."""
    planners = [Planner(laboratory, family, texts.choose, times, say) for family in families(served, times)]
    sensitivity = {each.family.name: tuple(each.groups) for each in planners}
    chosen = [(planner, planner.choose(budget)) for planner in planners]
    waiting = [(planner, choice) for planner, choice in chosen if choice.groups]
    best: tuple[Chosen, Agreement] | None = None
    for planner, choice in sorted(waiting, key=lambda each: each[0].plan(each[1].groups).us):
        if best is not None and best[0].us <= planner.plan(choice.groups).us:
            break
        found = planner.verify(choice, budget, texts.judge)
        if found[0].plan and (best is None or found[0].us < best[0].us):
            best = found
    if best is None:
        return None, Agreement(0, None, None, None, 0.0), sensitivity
    return *best, sensitivity


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
