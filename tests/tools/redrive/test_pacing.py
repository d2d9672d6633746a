"""The rate: even gaps, none before the first, and no burst to make up for a pause."""

from __future__ import annotations

import pytest

from tools.redrive.pacing import Pacer


class Clock:
    """Seconds that pass only when somebody sleeps or says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


async def test_even_gaps():
    clock = Clock()
    pacer = Pacer(4, clock, clock.sleep)
    for _ in range(5):
        await pacer.turn()
    assert clock.slept == [0.25] * 4


async def test_what_a_send_takes_is_part_of_the_gap_and_a_pause_earns_nothing():
    clock = Clock()
    pacer = Pacer(4, clock, clock.sleep)
    await pacer.turn()
    clock.now_s += 0.2
    await pacer.turn()
    assert clock.slept == [pytest.approx(0.05)]
    clock.now_s += 60
    for _ in range(3):
        await pacer.turn()
    assert clock.slept[1:] == [pytest.approx(0.25)] * 2


async def test_without_a_rate_nobody_waits():
    clock = Clock()
    pacer = Pacer(0, clock, clock.sleep)
    for _ in range(100):
        await pacer.turn()
    assert clock.slept == []
