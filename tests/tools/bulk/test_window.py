"""The window: slowly up, quickly down, and what is tried again goes first."""

from __future__ import annotations

import asyncio
import time

from tools.bulk.window import Window


def test_it_grows_by_one_a_round_up_to_its_bound() -> None:
    window = Window(6)
    assert window.limit == 4
    for _ in range(5):
        window.succeeded()
    assert 5 < window.limit < 5.2
    for _ in range(100):
        window.succeeded()
    assert window.limit == 6


def test_refusals_of_one_round_halve_it_once() -> None:
    window = Window(64)
    sent_at = time.monotonic()
    for _ in range(10):
        window.refused(sent_at)
    assert window.limit == 2
    window.refused(time.monotonic())
    assert window.limit == 1
    assert window.refusals == 11


async def test_no_more_than_the_limit_are_under_way_and_a_second_try_goes_first() -> None:
    window = Window(2)
    order: list[str] = []

    async def one(name: str, *, again: bool = False) -> None:
        await window.acquire(again=again)
        order.append(name)

    await window.acquire()
    await window.acquire()
    waiting = [asyncio.create_task(one("new"))]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(one("again", again=True)))
    await asyncio.sleep(0.01)
    assert order == []
    window.release()
    window.release()
    await asyncio.gather(*waiting)
    assert order == ["again", "new"]


async def test_a_cancelled_wait_takes_no_place() -> None:
    window = Window(1)
    await window.acquire()
    waiting = asyncio.create_task(window.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    window.release()
    async with asyncio.timeout(1):
        await window.acquire()


async def test_refused_at_the_smallest_it_pauses_until_time_or_an_answer() -> None:
    window = Window(1)
    window.refused(await window.acquire())
    window.release()
    began = time.monotonic()
    await window.acquire()
    assert time.monotonic() - began > 0.1
    window.refused(time.monotonic())
    waiting = asyncio.create_task(window.acquire())
    await asyncio.sleep(0)
    window.succeeded()  # another request's answer
    window.release()
    async with asyncio.timeout(0.2):
        await waiting
