"""The queue of prepared requests and the batches that are formed from it.

Pure data, no I/O; used by the event loop's thread alone. Order is (priority, arrival). A batch takes whole
requests while they fit the budgets; the first that does not fit stays at the head and opens the next batch,
so nothing starves. Times are integer milliseconds of whatever clock the caller uses.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the queue needs to know of a request. `arrival` is unique."""

    @property
    def arrival(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def expires_ms(self) -> int | None: ...


@dataclass(frozen=True)
class Budget:
    """The most that one batch may hold."""

    tokens: int
    samples: int


@dataclass(frozen=True)
class Ahead:
    """Work that runs before a request of some priority would."""

    tokens: int
    samples: int


T = TypeVar("T", bound=Waiting)


class RequestQueue(Generic[T]):
    """Requests that wait for a slot. Every push leaves once: in a batch, expired, or drained."""

    def __init__(self) -> None:
        self._live: dict[int, T] = {}  # by arrival; the heaps may still name requests that left
        self._order: list[tuple[int, int]] = []  # (priority, arrival)
        self._expiry: list[tuple[int, int]] = []  # (expires_ms, arrival)
        self._tokens: Counter[int] = Counter()  # by priority
        self._samples: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_tokens(self) -> int:
        return self._tokens.total()

    def push(self, item: T) -> None:
        assert item.arrival not in self._live, f"arrival {item.arrival} is queued already"
        self._live[item.arrival] = item
        heapq.heappush(self._order, (item.priority, item.arrival))
        if item.expires_ms is not None:
            heapq.heappush(self._expiry, (item.expires_ms, item.arrival))
        self._tokens[item.priority] += item.num_tokens
        self._samples[item.priority] += item.num_samples

    def form(self, budget: Budget) -> list[T]:
        """The next batch in order, empty when nothing waits. A request over the budget goes alone."""
        batch: list[T] = []
        tokens = samples = 0
        while (head := self._head()) is not None:
            tokens += head.num_tokens
            samples += head.num_samples
            if batch and (tokens > budget.tokens or samples > budget.samples):
                break
            batch.append(head)
            self._leave(head)
        return batch

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

    def ahead_of(self, priority: int) -> Ahead:
        """What waits at this priority or a sooner one."""
        sooner = [each for each in self._tokens if each <= priority]
        return Ahead(sum(self._tokens[each] for each in sooner), sum(self._samples[each] for each in sooner))

    def drain(self) -> list[T]:
        """Take out everything, in order of arrival."""
        items = sorted(self._live.values(), key=lambda item: item.arrival)
        self.__init__()  # type: ignore[misc]
        return items

    def _head(self) -> T | None:
        while self._order and self._order[0][1] not in self._live:
            heapq.heappop(self._order)
        return self._live[self._order[0][1]] if self._order else None

    def _leave(self, item: T) -> None:
        del self._live[item.arrival]
        self._tokens[item.priority] -= item.num_tokens
        self._samples[item.priority] -= item.num_samples
