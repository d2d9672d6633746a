"""Order, budgets, expiry and counts of the queue of prepared requests."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from worker.batching import Ahead, Budget, RequestQueue


@dataclass(frozen=True)
class Item:
    arrival: int
    priority: int = 0
    num_tokens: int = 1
    num_samples: int = 1
    expires_ms: int | None = None


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
    while batch := queue.form(Budget(tokens, samples)):
        if len(batch) > 1:
            assert sum(each.num_tokens for each in batch) <= tokens
            assert sum(each.num_samples for each in batch) <= samples
        served += batch
    assert served == sorted(items, key=lambda each: (each.priority, each.arrival))
    assert len(queue) == queue.num_tokens == 0
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
    while batch := queue.form(Budget(100, 100)):
        ran += batch
    assert sorted(ran, key=lambda each: each.arrival) == left
    assert queue.expired(1_000) == []


@given(ITEMS, st.integers(0, 9))
def test_what_is_ahead_counts_sooner_priorities_only(items: list[Item], priority: int) -> None:
    queue = queue_of(items)
    sooner = [each for each in items if each.priority <= priority]
    tokens, samples = sum(e.num_tokens for e in sooner), sum(e.num_samples for e in sooner)
    assert queue.ahead_of(priority) == Ahead(tokens, samples)


def test_a_large_request_at_the_head_is_not_overtaken() -> None:
    queue = queue_of([Item(0, num_tokens=60), Item(1, num_tokens=90), Item(2, num_tokens=10)])
    budget = Budget(100, 10)
    assert [[each.arrival for each in queue.form(budget)] for _ in range(3)] == [[0], [1, 2], []]


def test_a_request_over_the_budget_goes_alone_rather_than_blocking() -> None:
    queue = queue_of([Item(0, num_tokens=500), Item(1)])
    assert [each.arrival for each in queue.form(Budget(100, 10))] == [0]


def test_draining_leaves_an_empty_queue_that_can_be_used_again() -> None:
    queue = queue_of([Item(1, priority=0), Item(0, priority=9)])
    assert [each.arrival for each in queue.drain()] == [0, 1]
    assert len(queue) == 0
    queue.push(Item(0))
    assert queue.form(Budget(1, 1)) == [Item(0)]
