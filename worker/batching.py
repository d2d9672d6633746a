"""The queue of prepared requests and the batches that are formed from it.

Pure data, no I/O; used by the event loop's thread alone. Order is (priority, arrival). A batch takes whole
requests from the head while they fit the budget, or fewer of them where a choice says so; the first that does
not come along stays at the head and opens the next batch, so nothing starves. Times are integer milliseconds
of whatever clock the caller uses.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from engine.demand import NOTHING, Demand, total


class Waiting(Protocol):
    """What the queue needs to know of a request. `arrival` is unique."""

    @property
    def arrival(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def demand(self) -> Demand: ...
    @property
    def expires_ms(self) -> int | None: ...


T = TypeVar("T", bound=Waiting)
Choose: TypeAlias = Callable[[Sequence[T], Callable[[], Sequence[T]]], int]
"""Requests in order that fit one batch, and who would tell some of those behind -> how many to take."""

LOOKAHEAD = 64  # requests behind a batch that a choice hears of


class RequestQueue(Generic[T]):
    """Requests that wait for a slot. Every push leaves once: in a batch, expired, or drained."""

    def __init__(self) -> None:
        self._live: dict[int, T] = {}  # by arrival; the heaps may still name requests that left
        self._order: list[tuple[int, int]] = []  # (priority, arrival)
        self._expiry: list[tuple[int, int]] = []  # (expires_ms, arrival)
        self._demand: defaultdict[int, Demand] = defaultdict(lambda: NOTHING)  # by priority

    def __len__(self) -> int:
        return len(self._live)

    def push(self, item: T) -> None:
        assert item.arrival not in self._live, f"arrival {item.arrival} is queued already"
        self._live[item.arrival] = item
        heapq.heappush(self._order, (item.priority, item.arrival))
        if item.expires_ms is not None:
            heapq.heappush(self._expiry, (item.expires_ms, item.arrival))
        self._demand[item.priority] += item.demand

    def form(self, budget: Demand, choose: Choose[T] | None = None) -> list[T]:
        """The next batch in order, empty when nothing waits. A request over the budget (of tokens and
        samples) goes alone. `choose` is asked where there is a choice and a deadline."""
        fitting, behind = self._pop_fitting(budget)
        count = len(fitting)
        if choose is not None and count > 1 and self.next_expiry() is not None:

            def look() -> list[T]:
                behind.extend(self._pop(LOOKAHEAD - len(behind), [*fitting, *behind]))
                return behind

            count = choose(fitting, look)
            assert 1 <= count <= len(fitting), f"{count} requests of {len(fitting)} that fit"
        for item in (*fitting[count:], *behind):
            heapq.heappush(self._order, (item.priority, item.arrival))
        for item in fitting[:count]:
            self._leave(item)
        return fitting[:count]

    def expired(self, now_ms: int) -> list[T]:
        """Take out what has expired by now."""
        gone: list[T] = []
        while (expires_ms := self.next_expiry()) is not None and expires_ms <= now_ms:
            item = self._live[self._expiry[0][1]]
            self._leave(item)
            gone.append(item)
        return gone

    def next_expiry(self) -> int | None:
        """When the next request expires, if any waiting one does."""
        while self._expiry and self._expiry[0][1] not in self._live:
            heapq.heappop(self._expiry)
        return self._expiry[0][0] if self._expiry else None

    def ahead_of(self, priority: int) -> Demand:
        """What waits at this priority or a sooner one."""
        return total(demand for each, demand in self._demand.items() if each <= priority)

    def drain(self) -> list[T]:
        """Take out everything, in order of arrival."""
        items = sorted(self._live.values(), key=lambda item: item.arrival)
        self.__init__()  # type: ignore[misc]
        return items

    def _pop_fitting(self, budget: Demand) -> tuple[list[T], list[T]]:
        """Out of the heap, still live, in order: what fits a batch, and the first that does not."""
        fitting: list[T] = []
        demand = NOTHING
        while following := self._pop(1, fitting[-1:]):
            demand += following[0].demand
            if fitting and (demand.tokens > budget.tokens or demand.samples > budget.samples):
                return fitting, following
            fitting += following
        return fitting, []

    def _pop(self, most: int, popped: Sequence[T]) -> list[T]:
        """The next in order. One that left and came back has two entries in the heap, side by side: `popped`
        are not given again."""
        found: list[T] = []
        known = {item.arrival for item in popped}
        while self._order and len(found) < most:
            arrival = heapq.heappop(self._order)[1]
            if arrival in self._live and arrival not in known:
                known.add(arrival)
                found.append(self._live[arrival])
        return found

    def _leave(self, item: T) -> None:
        del self._live[item.arrival]
        self._demand[item.priority] -= item.demand
