"""The bound behind which a stream stops reading, and who wakes whom."""

from __future__ import annotations

import asyncio
import time

from worker.window import Busy, Window


def test_room_is_bounded_by_requests_and_by_bytes() -> None:
    window = Window(max_requests=3, max_bytes=100)
    assert window.room == 3
    window.enter(10)
    assert window.room == 2
    window.enter(95)  # may pass the bound once
    assert window.room == 0
    window.leave(10)
    assert window.room == 2
    window.leave(95)
    assert (window.room, window.num_requests, window.num_bytes) == (3, 0, 0)


async def test_whoever_waits_is_woken_by_what_leaves_or_a_nudge() -> None:
    window = Window(1, 100)
    window.enter(1)
    for wake in (lambda: window.leave(1), window.nudge):
        waiting = asyncio.create_task(window.changed(30))
        await asyncio.sleep(0)
        wake()
        async with asyncio.timeout(5):
            await waiting
    await window.changed(0.01)  # comes back by itself


def test_an_empty_window_knows_since_when_it_is_not() -> None:
    window = Window(3, 100)
    before_s = window.busy_since_s
    while time.monotonic() == before_s:
        pass
    window.enter(1)
    since_s = window.busy_since_s
    assert since_s > before_s
    window.enter(1)
    window.leave(1)
    assert window.busy_since_s == since_s


async def test_nothing_busy_is_told_at_once_and_in_time() -> None:
    busy = Busy()
    assert await busy.none(0.01)
    busy.begin(2)
    assert not await busy.none(0.01)
    busy.end()
    assert not await busy.none(0.01)
    waiting = asyncio.create_task(busy.none(30))
    await asyncio.sleep(0)
    busy.end()
    async with asyncio.timeout(5):
        assert await waiting
