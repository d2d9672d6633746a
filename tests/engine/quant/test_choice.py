"""The choice within a budget, against errors that add up as assumed and errors that do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.errors import ConfigError
from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.choice import choose, order_groups, step_back
from engine.quant.sensitivity import Sensitivity

BF16_KL = 0.001
GROUPS = [Sensitivity("down", i, i, kl, None) for i, kl in enumerate((0.0001, 0.05, 0.0004, 0.002, 0.0008))]


def kl_of(chosen: Sequence[Sensitivity], factor: float = 1.0) -> Agreement:
    return Agreement(9, None, None, None, BF16_KL + factor * sum(group.next_token_kl for group in chosen))


def save_alike(_: Sensitivity) -> float:
    return 1.0


def places(groups: Sequence[Sensitivity]) -> list[int]:
    return sorted(group.first for group in groups)


def test_the_most_that_holds_is_taken() -> None:
    found = choose(GROUPS, save_alike, Budget(kl=0.003), kl_of)
    assert places(found.groups) == [0, 2, 4]
    assert found.agreement.next_token_kl == pytest.approx(0.0023)


@pytest.mark.parametrize(("factor", "expected"), [(3.0, [0, 2]), (0.3, [0, 2, 3, 4])])
def test_a_measurement_counts_and_not_the_sum(factor: float, expected: list[int]) -> None:
    asked: list[list[int]] = []

    def measure(some: Sequence[Sensitivity]) -> Agreement:
        asked.append(places(some))
        return kl_of(some, factor)

    found = choose(GROUPS, save_alike, Budget(kl=0.003), measure)
    assert places(found.groups) == expected
    assert found.agreement.next_token_kl <= 0.003
    assert asked == [[], [0, 2, 4], expected]


def test_shifts_add_up_squared() -> None:
    groups = [Sensitivity("down", i, i, 1e-6, 0.02) for i in range(9)]

    def measure(some: Sequence[Sensitivity]) -> Agreement:
        return Agreement(9, (0.03**2 + 0.02**2 * len(some)) ** 0.5, None, None, 0.001)

    assert len(choose(groups, save_alike, Budget(), measure).groups) == 4


def test_a_large_group_that_does_not_fit_leaves_room_for_small_ones() -> None:
    chosen = choose(GROUPS, lambda group: 1000.0 if group.first == 1 else 1.0, Budget(kl=0.003), kl_of)
    assert places(chosen.groups) == [0, 2, 4]


def test_everything_where_everything_holds_and_nothing_where_bf16_does_not() -> None:
    assert len(choose(GROUPS, save_alike, Budget(kl=1.0), kl_of).groups) == len(GROUPS)
    found = choose(GROUPS, save_alike, Budget(kl=0.0005), kl_of)
    assert (found.groups, found.agreement.next_token_kl) == ([], BF16_KL)


def test_other_texts_take_back_what_does_not_hold_there() -> None:
    budget = Budget(kl=0.003)
    choice = choose(GROUPS, save_alike, budget, kl_of)
    kept, found = step_back(choice, budget, lambda some: kl_of(some, 2.0))
    assert places(kept) == [0, 2]
    assert found.next_token_kl == pytest.approx(0.002)
    assert step_back(choice, budget, kl_of) == (choice.groups, choice.agreement)
    assert step_back(choice, Budget(kl=0.0005), kl_of)[0] == []


def test_time_saved_for_the_answers_moved_and_no_group_that_saves_nothing() -> None:
    ordered = order_groups(GROUPS, lambda group: (1, 1000, 0, 1, -1)[group.first], Budget())
    assert [group.first for group in ordered] == [1, 0, 3]


def test_budgets() -> None:
    budget = Budget(label_shift=0.05, kl=0.004)
    assert budget.broken(Agreement(9, 0.04, 1.0, 1.0, 0.003)) is None
    assert "0.0600, allowed 0.05" in (budget.broken(Agreement(9, 0.06, 1.0, 1.0, 0.003)) or "")
    assert "0.00500, allowed 0.004" in (budget.broken(Agreement(9, None, None, None, 0.005)) or "")
    assert budget.broken(Agreement(9, None, None, None, float("nan"))) is not None
    with pytest.raises(ConfigError, match="max_kl = -1"):
        Budget(kl=-1)
