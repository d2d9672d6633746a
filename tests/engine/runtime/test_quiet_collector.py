"""Old garbage goes before a capture, new garbage waits until after it, and captures take turns."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from engine.runtime.quiet_collector import quiet_collector


class Cycle:
    def __init__(self) -> None:
        self.me = self


def leave_garbage() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


def churn() -> None:
    """Enough new objects to set off collections."""
    kept = [[index] for index in range(100_000)]
    assert kept


def test_garbage_is_collected_before_and_not_within() -> None:
    old = leave_garbage()
    with quiet_collector():
        assert old() is None
        new = leave_garbage()
        churn()
        assert new() is not None
    assert gc.isenabled()
    churn()
    gc.collect()
    assert new() is None


def test_it_comes_back_after_an_error_and_stays_off_where_it_was() -> None:
    with pytest.raises(RuntimeError), quiet_collector():
        raise RuntimeError
    assert gc.isenabled()
    gc.disable()
    try:
        with quiet_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_two_threads_take_turns() -> None:
    inside, leave = Event(), Event()
    order: list[str] = []

    def first() -> None:
        with quiet_collector():
            inside.set()
            leave.wait(10)
            order.append("first")

    def second() -> None:
        inside.wait(10)
        leave.set()
        with quiet_collector():
            order.append("second")
            assert not gc.isenabled()

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(first), pool.submit(second)]:
            each.result(20)
    assert order == ["first", "second"]
