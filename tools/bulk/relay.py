"""How the threads of a run hand things on and stop together.

A Relay is a bounded queue with an end; Stop is the one reason for which every thread leaves. No wait in here
is longer than POLL_S without looking at Stop, so that a signal or another thread's failure ends all of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

POLL_S = 0.1
T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 - what happened, not a mistake
    """The run is to stop; why is in Stop."""


class Stop:
    """Set once, by a signal or by the first thread that fails. Safe to call from a signal handler."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.error: BaseException | None = None
        self._event = threading.Event()

    def on_signal(self, number: int) -> None:
        self.signal = self.signal or number
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """Keep the first error; Stopped itself is none."""
        if self.error is None and not isinstance(error, Stopped):
            self.error = error
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raises Stopped once the run is to stop."""
        if self._event.is_set():
            raise Stopped

    def until(self, attempt: Callable[[float], bool]) -> None:
        """Repeat `attempt`, which waits at most the given seconds, until it is true. Raises Stopped."""
        self.check()
        while not attempt(POLL_S):
            self.check()


class Relay(Generic[T]):
    """At most `size` things between one thread that puts and one that iterates."""

    def __init__(self, size: int, stop: Stop) -> None:
        self._queue: queue.Queue[tuple[T] | None] = queue.Queue(size)
        self._stop = stop

    def put(self, item: T) -> None:
        """Waits for room; raises Stopped."""
        self._put((item,))

    def close(self) -> None:
        """No more will come; raises Stopped."""
        self._put(None)

    def __iter__(self) -> Iterator[T]:
        """Until closed; raises Stopped."""
        while (found := self._get()) is not None:
            yield found[0]

    def drain(self) -> Iterator[T]:
        """What is in it now, without waiting."""
        while True:
            try:
                found = self._queue.get_nowait()
            except queue.Empty:
                return
            if found is not None:
                yield found[0]

    def _put(self, item: tuple[T] | None) -> None:
        def attempt(seconds: float) -> bool:
            try:
                self._queue.put(item, timeout=seconds)
            except queue.Full:
                return False
            return True

        self._stop.until(attempt)

    def _get(self) -> tuple[T] | None:
        while True:
            self._stop.check()
            try:
                return self._queue.get(timeout=POLL_S)
            except queue.Empty:
                continue
