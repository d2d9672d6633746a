"""The choice within a budget, against errors that add up as assumed and errors that do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.errors import ConfigError
from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.choice import choose, order_groups
from engine.quant.sensitivity import Sensitivity
from engine.quant.speed import matrix_us, plan_us

BF16_KL = 0.001
GROUPS = [Sensitivity("down", i, i, kl, None) for i, kl in enumerate((0.0001, 0.05, 0.0004, 0.002, 0.0008))]


def kl_of(chosen: Sequence[Sensitivity], factor: float = 1.0) -> Agreement:
    return Agreement(9, None, None, None, BF16_KL + factor * sum(group.next_token_kl for group in chosen))


def test_the_most_that_holds_is_taken() -> None:
    chosen, found = choose(GROUPS, lambda group: 1.0, Budget(kl=0.003), kl_of)
    assert sorted(group.first for group in chosen) == [0, 2, 4]
    assert found.next_token_kl == pytest.approx(0.0023)


def test_a_measurement_counts_and_not_the_sum() -> None:
    chosen, found = choose(GROUPS, lambda group: 1.0, Budget(kl=0.003), lambda some: kl_of(some, 3.0))
    assert sorted(group.first for group in chosen) == [0, 2]
    assert found.next_token_kl <= 0.003


def test_everything_where_everything_holds_and_nothing_where_bf16_does_not() -> None:
    assert len(choose(GROUPS, lambda group: 1.0, Budget(kl=1.0), kl_of)[0]) == len(GROUPS)
    chosen, found = choose(GROUPS, lambda group: 1.0, Budget(kl=0.0005), kl_of)
    assert (chosen, found.next_token_kl) == ([], BF16_KL)


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


def test_estimated_speed(make_decoder: object) -> None:
    assert callable(make_decoder)
    architecture = make_decoder()[0]
    everything = {
        (layer, kind): "int8" for layer in range(2) for kind in ("qkv", "output", "gate_up", "down")
    }
    assert plan_us(architecture, everything) < plan_us(architecture, {})
    assert matrix_us(architecture, "qkv", "int8", exact=True) > matrix_us(architecture, "qkv", "int8")
