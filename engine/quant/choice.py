"""The fastest plan within a budget: 8 bits where they save most time for the answers that they move.

Errors of different matrices are nearly independent: KL adds up, shifts add up squared. That orders the
groups and says how many there is room for; what counts is a measurement of the whole plan. Each one corrects
the sums, until a plan holds and the corrected sums have no room for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.sensitivity import Sensitivity

Measure = Callable[[Sequence[Sensitivity]], Agreement]  # of a plan: these groups in 8 bits, the rest bf16
Saved = Callable[[Sensitivity], float]  # us
ROUNDS = 6  # measurements of plans, at most
GAIN = 1.02  # in time saved: less is not worth another measurement
LEAST, MOST = 0.25, 16.0  # how far off the sums are believed to be


def order_groups(groups: Sequence[Sensitivity], saved: Saved, budget: Budget) -> list[Sensitivity]:
    """Best first: time saved for the share of the budget; groups that save nothing are left out."""
    useful = [group for group in groups if saved(group) > 0]

    def worth(group: Sensitivity) -> float:
        return saved(group) / (budget.share(group.next_token_kl, group.label_shift) + 1e-9)

    return sorted(useful, key=worth, reverse=True)


@dataclass(frozen=True)
class Sums:
    """A plan's error as it should be: bf16's, and a factor times what its groups add (KL, shift squared)."""

    budget: Budget
    kl: float
    shift: float | None
    kl_factor: float = 1.0
    shift_factor: float = 1.0

    def holds(self, plan: Sequence[Sensitivity]) -> bool:
        kl, squared = _added(plan)
        if self.kl + self.kl_factor * kl > self.budget.kl:
            return False
        return self.shift is None or self.shift**2 + self.shift_factor * squared <= self.budget.label_shift**2

    def fill(self, ordered: Sequence[Sensitivity]) -> list[Sensitivity]:
        """Of the ordered groups each that still fits beside those before it."""
        plan: list[Sensitivity] = []
        for group in ordered:
            if self.holds([*plan, group]):
                plan.append(group)
        return plan

    def corrected(self, plan: Sequence[Sensitivity], found: Agreement) -> Sums:
        """By a measurement of `plan`."""
        kl, squared = _added(plan)
        kl_factor = (found.next_token_kl - self.kl) / max(kl, 1e-12)
        shift_factor = self.shift_factor
        if found.label_shift is not None and self.shift is not None:
            shift_factor = (found.label_shift**2 - self.shift**2) / max(squared, 1e-12)
        return Sums(self.budget, self.kl, self.shift, _bounded(kl_factor), _bounded(shift_factor))


def _added(plan: Sequence[Sensitivity]) -> tuple[float, float]:
    return sum(each.next_token_kl for each in plan), sum((each.label_shift or 0.0) ** 2 for each in plan)


def _bounded(factor: float) -> float:
    return min(max(factor, LEAST), MOST)


@dataclass(frozen=True)
class Choice:
    """A plan that held when it was measured, or none; `sums` as the last measurement left them."""

    groups: list[Sensitivity]
    agreement: Agreement
    sums: Sums


def choose(groups: Sequence[Sensitivity], saved: Saved, budget: Budget, measure: Measure) -> Choice:
    """The plan that saves most of those that were measured and held; at most ROUNDS + 1 measurements. No
    groups where bf16 itself is over the budget."""
    ordered = order_groups(groups, saved, budget)
    base = measure([])
    sums = Sums(budget, base.next_token_kl, base.label_shift)
    best = Choice([], base, sums)
    if budget.broken(base) is not None:
        return best
    plan, most = sums.fill(ordered), 0.0
    for _ in range(ROUNDS):
        if (time := sum(map(saved, plan))) <= GAIN * most:
            break
        found = measure(plan)
        sums = sums.corrected(plan, found)
        holds = budget.broken(found) is None
        if holds:
            best, most = Choice(plan, found, sums), time
        filled = sums.fill(ordered)
        plan = fewer(plan) if not holds and len(filled) >= len(plan) else filled
    return best


def step_back(choice: Choice, budget: Budget, measure: Measure) -> tuple[list[Sensitivity], Agreement]:
    """The most of a chosen plan's groups, best first, that hold on other texts; none where bf16 does not."""
    plan, sums = choice.groups, replace(choice.sums, budget=budget)
    for _ in range(ROUNDS):
        found = measure(plan)
        if not plan or budget.broken(found) is None:
            return plan, found
        sums = sums.corrected(plan, found)
        filled = sums.fill(plan)
        plan = filled if len(filled) < len(plan) else fewer(plan)
    return [], measure([])


def fewer(plan: list[Sensitivity]) -> list[Sensitivity]:
    """Without the last of them: for what the sums do not know, the winners of a search."""
    return plan[: len(plan) * 3 // 4]
