"""The straight line through the batches seen lately, and the waits read off it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.demand import Demand
from worker.estimate import Line, ServiceTime

BUDGET = Demand(tokens=100, samples=10)


def learned(*batches: tuple[int, float]) -> ServiceTime:
    service = ServiceTime()
    for tokens, milliseconds in batches:
        service.observe(tokens, milliseconds)
    return service


def test_without_data_there_is_no_estimate() -> None:
    assert ServiceTime().wait_ms(Demand(1000, 10), BUDGET, 1) is None


@given(st.floats(0.5, 50), st.floats(0.001, 1))
def test_an_exact_line_is_found(base: float, per_token: float) -> None:
    service = learned(*[(tokens, base + per_token * tokens) for tokens in (10, 80, 30, 55)])
    assert service.line is not None
    assert service.line.base_ms == pytest.approx(base, rel=1e-3)
    assert service.line.per_token_ms == pytest.approx(per_token, rel=1e-3)


def test_batches_all_alike_are_a_constant() -> None:
    service = learned(*[(10, 5.0)] * 30)
    assert service.line == Line(pytest.approx(5.0), 0.0)  # type: ignore[arg-type]
    assert service.wait_ms(Demand(250, 5), BUDGET, 1) == pytest.approx(15.0)  # three batches
    assert service.wait_ms(Demand(250, 5), BUDGET, 2) == pytest.approx(7.5)
    assert service.wait_ms(Demand(10, 1), BUDGET, 4) == pytest.approx(5.0)  # one batch is not split
    assert service.wait_ms(Demand(10, 35), BUDGET, 1) == pytest.approx(20.0)  # samples fill batches too


def test_decode_steps_are_work_but_fill_no_batch() -> None:
    service = learned(*[(tokens, 2.0 + 0.1 * tokens) for tokens in (10, 80, 30, 55)])
    wait = service.wait_ms(Demand(40, 4, rows=300), BUDGET, 1)
    assert wait == pytest.approx(2.0 + 34.0, rel=1e-3)


def test_an_outlier_fades() -> None:
    service = learned((10, 2000.0), *[(10, 5.0)] * 200)
    wait = service.wait_ms(Demand(10, 1), BUDGET, 1)
    assert wait == pytest.approx(5.0, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0.1, 1000)), min_size=1, max_size=50))
def test_estimates_are_never_negative(batches: list[tuple[int, float]]) -> None:
    line = learned(*batches).line
    assert line is not None
    assert line.base_ms >= 0
    assert line.per_token_ms >= 0
