"""When batches will be done: a measured device with what runs on it, or the line through what was seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.demand import Demand
from worker.forecast import Forecast

BUDGET = Demand(100, 10)


class TenthOfAMillisecond:
    def predict_ms(self, num_tokens: int) -> float:
        assert 1 <= num_tokens <= BUDGET.tokens, "no bucket"
        return num_tokens / 10


@dataclass(frozen=True)
class Item:
    expires_ms: int | None = None
    priority: int = 0

    @property
    def demand(self) -> Demand:
        return Demand(10, 1)


def nobody() -> list[Item]:
    """Behind those that fit."""
    return []


def measured(slots: int = 2) -> Forecast:
    return Forecast(BUDGET, slots, TenthOfAMillisecond())


def test_a_batch_begins_when_those_before_it_are_through() -> None:
    forecast = measured()
    assert forecast.left_ms(50.0) == 0.0
    first, second = (forecast.begin(Demand(tokens, 1), 50.0) for tokens in (100, 40))
    assert forecast.left_ms(50.0) == pytest.approx(14.0)
    assert forecast.left_ms(56.0) == pytest.approx(8.0)
    forecast.end(first, 58.0)  # sooner than predicted
    assert forecast.left_ms(58.0) == pytest.approx(4.0)
    forecast.end(second, 70.0)
    assert forecast.left_ms(70.0) == 0.0


def test_what_batches_take_beyond_the_device_is_learned_and_fades() -> None:
    forecast = measured()
    assert forecast.batch_ms(Demand(50, 1)) == pytest.approx(5.0)
    for start_ms in (0.0, 100.0, 200.0):
        running = forecast.begin(Demand(50, 1), start_ms)
        forecast.end(running, start_ms + 7.5, ran=Demand(50, 1))
    assert forecast.batch_ms(Demand(20, 1)) == pytest.approx(2.0 + 2.5)
    for start_ms in range(1_000, 30_000, 100):  # lanes at once: sooner than one after the other
        forecast.end(forecast.begin(Demand(50, 1), start_ms), start_ms + 3.0, ran=Demand(50, 1))
    assert forecast.batch_ms(Demand(20, 1)) == pytest.approx(2.0, abs=0.01)


def test_a_batch_that_reached_no_model_teaches_nothing() -> None:
    forecast = measured()
    forecast.end(forecast.begin(Demand(50, 1), 0.0), 900.0)
    assert forecast.batch_ms(Demand(20, 1)) == pytest.approx(2.0)
    assert forecast.left_ms(900.0) == 0.0


def test_waits_count_what_runs_and_whole_batches() -> None:
    forecast = measured()
    forecast.begin(Demand(100, 1), 0.0)
    assert forecast.wait_ms(Demand(250, 3), 4.0) == pytest.approx(6.0 + 3 * 8.4)
    assert forecast.wait_ms(Demand(10, 1), 4.0) == pytest.approx(6.0 + 1.0)
    assert forecast.wait_ms(Demand(500, 3), 4.0) == pytest.approx(6.0 + 50.0)
    assert forecast.wait_ms(Demand(300, 25), 4.0) == pytest.approx(6.0 + 30.0)


def test_without_a_cost_model_the_line_predicts_once_there_is_one() -> None:
    forecast = Forecast(BUDGET, 1, None)
    items = [Item(expires_ms=10)] * 8
    assert forecast.wait_ms(Demand(10, 1), 0.0) is None
    assert forecast.choose(items, nobody, 0, 0.0) == 8  # nothing to predict from
    for tokens in (10, 80, 40, 60):
        forecast.end(forecast.begin(Demand(tokens, 1), 0.0), 2.0 + tokens / 10, ran=Demand(tokens, 1))
    assert forecast.batch_ms(Demand(40, 1, rows=20)) == pytest.approx(8.0)
    assert forecast.left_ms(0.0) == 0.0
    running = forecast.begin(Demand(50, 1), 0.0)
    assert forecast.wait_ms(Demand(50, 1), 0.0) == pytest.approx(12.0)
    running.turned = True  # its lane asks for the next one: nobody waits for it any more
    assert forecast.wait_ms(Demand(50, 1), 0.0) == pytest.approx(7.0)


def test_batches_are_chosen_by_the_clock_of_their_deadlines() -> None:
    forecast = measured()
    soon, late = Item(expires_ms=1_006), Item(expires_ms=2_000)
    assert forecast.choose([soon, *[late] * 7], nobody, 1_000, 50.0) == 5  # 5 ms
    forecast.begin(Demand(30, 1), 50.0)
    assert forecast.choose([soon, *[late] * 7], nobody, 1_000, 50.0) == 2  # behind 3 ms of work
    assert forecast.choose([soon, *[late] * 7], nobody, 1_000, 53.0) == 5
