"""Order, budgets, expiry and counts of the queue of prepared requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.demand import NOTHING, Demand
from worker.batching import LOOKAHEAD, RequestQueue


@dataclass(frozen=True)
class Item:
    arrival: int
    priority: int = 0
    num_tokens: int = 1
    num_samples: int = 1
    expires_ms: int | None = None

    @property
    def demand(self) -> Demand:
        return Demand(self.num_tokens, self.num_samples)


ITEMS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 50), st.integers(1, 8), st.none() | st.integers(0, 100)),
    max_size=40,
).map(lambda rows: [Item(index, *row) for index, row in enumerate(rows)])


def queue_of(items: list[Item]) -> RequestQueue[Item]:
    queue: RequestQueue[Item] = RequestQueue()
    for item in items:
        queue.push(item)
    return queue


@given(ITEMS, st.integers(10, 100), st.integers(4, 16))
def test_batches_keep_the_order_and_the_budgets_and_lose_nothing(
    items: list[Item], tokens: int, samples: int
) -> None:
    queue = queue_of(items)
    served: list[Item] = []
    while batch := queue.form(Demand(tokens, samples)):
        if len(batch) > 1:
            assert sum(each.num_tokens for each in batch) <= tokens
            assert sum(each.num_samples for each in batch) <= samples
        served += batch
    assert served == sorted(items, key=lambda each: (each.priority, each.arrival))
    assert len(queue) == 0
    assert queue.ahead_of(9) == NOTHING
    assert queue.next_expiry() is None


@given(ITEMS, st.integers(0, 100))
def test_expired_requests_leave_once_and_never_run(items: list[Item], now: int) -> None:
    queue = queue_of(items)
    gone = queue.expired(now)
    assert {each.arrival for each in gone} == {
        each.arrival for each in items if each.expires_ms is not None and each.expires_ms <= now
    }
    left = [each for each in items if each not in gone]
    ends = [each.expires_ms for each in left if each.expires_ms is not None]
    assert queue.next_expiry() == (min(ends) if ends else None)
    ran: list[Item] = []
    while batch := queue.form(Demand(100, 100)):
        ran += batch
    assert sorted(ran, key=lambda each: each.arrival) == left
    assert queue.expired(1_000) == []


@given(ITEMS, st.integers(0, 9))
def test_what_is_ahead_counts_sooner_priorities_only(items: list[Item], priority: int) -> None:
    queue = queue_of(items)
    sooner = [each for each in items if each.priority <= priority]
    tokens, samples = sum(e.num_tokens for e in sooner), sum(e.num_samples for e in sooner)
    assert queue.ahead_of(priority) == Demand(tokens, samples)


def test_a_large_request_at_the_head_is_not_overtaken() -> None:
    queue = queue_of([Item(0, num_tokens=60), Item(1, num_tokens=90), Item(2, num_tokens=10)])
    budget = Demand(100, 10)
    assert [[each.arrival for each in queue.form(budget)] for _ in range(3)] == [[0], [1, 2], []]


def test_a_request_over_the_budget_goes_alone_rather_than_blocking() -> None:
    queue = queue_of([Item(0, num_tokens=500), Item(1)])
    assert [each.arrival for each in queue.form(Demand(100, 10))] == [0]


def test_draining_leaves_an_empty_queue_that_can_be_used_again() -> None:
    queue = queue_of([Item(1, priority=0), Item(0, priority=9)])
    assert [each.arrival for each in queue.drain()] == [0, 1]
    assert len(queue) == 0
    queue.push(Item(0))
    assert queue.form(Demand(1, 1)) == [Item(0)]


@given(ITEMS, st.integers(10, 100), st.integers(4, 16), st.data())
def test_whatever_is_chosen_batches_keep_the_order_the_budgets_and_nothing_starves(
    items: list[Item], tokens: int, samples: int, data: st.DataObject
) -> None:
    queue = queue_of(items)
    ordered = sorted(items, key=lambda each: (each.priority, each.arrival))
    served: list[Item] = []

    def choose(fitting: Sequence[Item], look: Callable[[], Sequence[Item]]) -> int:
        assert sum(each.num_tokens for each in fitting) <= tokens
        assert sum(each.num_samples for each in fitting) <= samples
        behind = look() if data.draw(st.booleans()) else ()
        known = [*fitting, *behind]
        assert known == ordered[len(served) : len(served) + len(known)]
        left = len(ordered) - len(served) - len(fitting)
        assert len(behind) in (0, min(left, LOOKAHEAD))
        return data.draw(st.integers(1, len(fitting)))

    while batch := queue.form(Demand(tokens, samples), choose):
        served += batch
    assert served == ordered


def test_without_a_deadline_or_a_choice_nobody_is_asked() -> None:
    queue = queue_of([Item(0), Item(1)])
    assert len(queue.form(Demand(10, 10), lambda *_: pytest.fail("asked"))) == 2
    queue.push(Item(2, expires_ms=5))
    assert len(queue.form(Demand(10, 10), lambda *_: pytest.fail("asked"))) == 1


def test_one_that_left_and_came_back_is_served_once() -> None:
    queue = queue_of([Item(0, expires_ms=5), Item(1, expires_ms=50)])
    (gone,) = queue.expired(10)
    queue.push(Item(gone.arrival, expires_ms=60))
    queue.push(Item(2))
    seen: list[int] = []

    def choose(fitting: Sequence[Item], look: Callable[[], Sequence[Item]]) -> int:
        seen.extend(each.arrival for each in (*fitting, *look()))
        return len(fitting)

    assert [each.arrival for each in queue.form(Demand(2, 10), choose)] == [0, 1]
    assert seen == [0, 1, 2]
    assert [each.arrival for each in queue.form(Demand(10, 10))] == [2]
    assert queue.form(Demand(10, 10)) == []
