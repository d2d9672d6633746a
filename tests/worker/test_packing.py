"""How many requests a batch takes: no deadline is given up that fewer or more would keep, none starves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.demand import Demand, total
from worker.packing import Outlook, Predict

BUDGET = Demand(100, 16)


@dataclass(frozen=True)
class Item:
    tokens: int = 10
    expires_ms: int | None = None
    priority: int = 0
    samples: int = 1

    @property
    def demand(self) -> Demand:
        return Demand(self.tokens, self.samples)


def line(base: float, per_token: float) -> Predict:
    return lambda demand: base + per_token * demand.tokens


def steps(sizes: Sequence[int], times: Sequence[float]) -> Predict:
    """As buckets cost: what the next larger size takes; not always less than its parts."""
    return lambda demand: next(
        (ms for size, ms in zip(sizes, times, strict=True) if demand.tokens <= size), times[-1]
    )


def fitting(items: Sequence[Item]) -> int:
    count = 1
    while count < len(items):
        demand = total(item.demand for item in items[: count + 1])
        if demand.tokens > BUDGET.tokens or demand.samples > BUDGET.samples:
            break
        count += 1
    return count


def outlook(items: Sequence[Item], predict: Predict, start_ms: float = 0.0) -> Outlook:
    most = fitting(items)
    return Outlook(items[:most], lambda: items[most:], BUDGET, start_ms, predict)


ITEMS = st.lists(
    st.builds(
        Item, st.integers(1, 100), st.none() | st.integers(0, 200), st.integers(0, 2), st.integers(1, 6)
    ),
    min_size=1,
    max_size=24,
).map(lambda items: sorted(items, key=lambda item: item.priority))
PREDICTS = st.one_of(
    st.builds(line, st.floats(0, 20), st.floats(0, 1)),
    st.lists(st.floats(0.1, 40), min_size=5, max_size=5).map(
        lambda times: steps((10, 25, 50, 75, 100), sorted(times))
    ),
)


def test_without_tight_deadlines_it_takes_all_that_fit() -> None:
    items = [Item(expires_ms=1_000)] * 12
    assert outlook(items, line(5, 0.1)).choose() == 10


def test_it_stops_where_the_earliest_deadline_would_be_missed() -> None:
    items = [Item(expires_ms=6), *[Item(expires_ms=1_000)] * 4]
    assert outlook(items, line(2, 0.1)).choose() == 3  # 2 + 0.1 * 30 = 5 ms
    assert outlook(items, line(2, 0.1), start_ms=2).choose() == 1
    behind = [Item(expires_ms=1_000)] * 3 + [Item(expires_ms=7)] + [Item(expires_ms=1_000)]
    assert outlook(behind, line(2, 0.1)).choose() == 4


def test_a_deadline_that_cannot_be_met_shrinks_nothing() -> None:
    items = [Item(expires_ms=3), *[Item(expires_ms=1_000)] * 4]
    assert outlook(items, line(2, 0.1)).choose() == 5


def test_one_deadline_is_not_kept_at_the_price_of_several() -> None:
    """Under load the head is always late: serving it alone would make everyone behind it late too."""
    items = [Item(expires_ms=7), *[Item(expires_ms=16)] * 9]
    assert outlook(items, line(2, 1.0)).choose() == 10
    sooner = [Item(expires_ms=13), *[Item(expires_ms=103, priority=1)] * 9]
    assert outlook(sooner, line(2, 1.0)).choose() == 1  # unless it comes before them
    assert outlook([replace(item, priority=0) for item in sooner], line(2, 1.0)).choose() == 10


def test_where_a_full_batch_waits_the_longer_way_must_pay_for_those_to_come() -> None:
    """A second batch takes 5 ms more, in which a full one serves three requests."""
    items = [Item(expires_ms=9), *[Item(expires_ms=1_000)] * 9]
    assert outlook(items, line(5, 0.1)).choose() == 10
    assert outlook(items[:2], line(5, 0.1)).choose() == 2
    assert outlook(items, line(0.1, 0.1)).choose() == 8


def test_a_batch_that_is_slower_than_its_parts_is_not_formed() -> None:
    items = [Item(tokens=50)] * 2
    assert outlook(items, steps((50, 100), (1.0, 3.0))).choose() == 1
    assert outlook(items, steps((50, 100), (1.0, 2.0))).choose() == 2


@given(ITEMS, PREDICTS, st.floats(0, 100))
def test_a_batch_is_done_no_later_than_its_members_one_by_one(
    items: list[Item], predict: Predict, start_ms: float
) -> None:
    count = outlook(items, predict, start_ms).choose()
    assert 1 <= count <= fitting(items)
    together = predict(total(item.demand for item in items[:count]))
    assert together <= sum(predict(item.demand) for item in items[:count]) * (1 + 1e-9)


@given(ITEMS, PREDICTS, st.floats(0, 100))
def test_as_many_deadlines_are_met_as_by_full_batches(
    items: list[Item], predict: Predict, start_ms: float
) -> None:
    """Those of sooner priorities first; a cut keeps more."""
    seen = outlook(items, predict, start_ms)
    full = seen._useful()[-1]
    assert seen.choose() == full or seen.after(seen.choose()).in_time > seen.after(full).in_time


@given(ITEMS, st.floats(0, 20), st.floats(0, 1), st.floats(0, 100), st.data())
def test_hopeless_requests_count_as_if_they_had_no_deadline(
    items: list[Item], base: float, per_token: float, start_ms: float, data: st.DataObject
) -> None:
    predict = line(base, per_token)
    place = data.draw(st.integers(0, len(items) - 1))
    late = int(start_ms + predict(items[place].demand))
    hopeless = [*items[:place], replace(items[place], expires_ms=late), *items[place + 1 :]]
    free = [*items[:place], replace(items[place], expires_ms=None), *items[place + 1 :]]
    assert outlook(hopeless, predict, start_ms).choose() == outlook(free, predict, start_ms).choose()


@given(ITEMS, PREDICTS)
def test_whatever_the_deadlines_every_request_gets_its_turn(items: list[Item], predict: Predict) -> None:
    waiting, clock_ms, batches = items, 0.0, 0
    while waiting:
        count = outlook(waiting, predict, clock_ms).choose()
        clock_ms += predict(total(item.demand for item in waiting[:count]))
        waiting, batches = waiting[count:], batches + 1
    assert batches <= len(items)


@given(ITEMS, PREDICTS, st.floats(0, 50))
def test_a_single_deadline_that_some_batch_meets_is_met(
    items: list[Item], predict: Predict, start_ms: float
) -> None:
    """Where nobody else has one, the batch that its request is in is in time."""
    most = fitting(items)
    place = most - 1
    free = [replace(item, expires_ms=None) for item in items]
    seen = outlook(free, predict, start_ms)
    if most not in seen._useful():
        return
    end_ms = start_ms + predict(total(item.demand for item in free[:most]))
    free[place] = replace(free[place], expires_ms=int(end_ms) + 1)
    seen = outlook(free, predict, start_ms)
    assert sum(seen.after(seen.choose()).in_time) == 1


@pytest.mark.parametrize("count", [40, 90])
def test_many_different_deadlines_cost_a_bounded_number_of_tries(count: int) -> None:
    items = [Item(tokens=1, expires_ms=5 + i, samples=0) for i in range(count)]
    seen = outlook(items, line(5, 1.0))
    tried: list[int] = []
    real = seen.after
    seen.after = lambda size: (tried.append(size), real(size))[1]  # type: ignore[method-assign]
    assert 1 <= seen.choose() <= count
    assert len(tried) <= 7
