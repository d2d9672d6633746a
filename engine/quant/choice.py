"""The fastest plan within a budget: 8 bits where they save most time for the answers that they move.

Errors of different matrices are nearly independent: KL adds up, shifts add up squared. That orders the
groups; what counts is a measurement of the whole plan, and groups are given back until it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.sensitivity import Sensitivity

Measure = Callable[[Sequence[Sensitivity]], Agreement]  # of a plan: these groups in 8 bits, the rest bf16
Saved = Callable[[Sensitivity], float]  # us


def order_groups(groups: Sequence[Sensitivity], saved: Saved, budget: Budget) -> list[Sensitivity]:
    """Best first: time saved for the share of the budget; groups that save nothing are left out."""
    useful = [group for group in groups if saved(group) > 0]

    def worth(group: Sensitivity) -> float:
        return saved(group) / (budget.share(group.next_token_kl, group.label_shift) + 1e-9)

    return sorted(useful, key=worth, reverse=True)


def choose(
    groups: Sequence[Sensitivity], saved: Saved, budget: Budget, measure: Measure
) -> tuple[list[Sensitivity], Agreement]:
    """The most of the ordered groups whose measured agreement holds, and that agreement; a few measurements
    (bisection). None of them where bf16 itself is over the budget."""
    ordered = order_groups(groups, saved, budget)
    found = measure(ordered)
    if budget.broken(found) is None:
        return ordered, found
    most, least = len(ordered), 0
    best = measure([])
    if budget.broken(best) is not None:
        return [], best
    while most - least > 1:
        middle = _guess(ordered, least, most, budget)
        found = measure(ordered[:middle])
        if budget.broken(found) is None:
            least, best = middle, found
        else:
            most = middle
    return ordered[:least], best


def _guess(ordered: Sequence[Sensitivity], least: int, most: int, budget: Budget) -> int:
    """The first time what the sums say, afterwards the middle."""
    if least == 0 and most == len(ordered):
        used = 0.0
        for index, group in enumerate(ordered):
            used += budget.share(group.next_token_kl, group.label_shift)
            if used > 0.7:  # bf16 of the rest takes its part
                return min(max(index, 1), most - 1)
    return (least + most) // 2
