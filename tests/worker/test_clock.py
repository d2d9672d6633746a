"""The worker's timeline and the reference beside it, whatever the wall clock does."""

from __future__ import annotations

import pytest

from worker.deadlines import (
    Clock,
)

NOW = 1_790_000_000_000  # receipt, on the worker's timeline


class Watch:
    """A monotonic clock and a wall clock, both set by hand, in seconds."""

    def __init__(self) -> None:
        self.monotonic_s = 50.0
        self.wall_s = 1_790_000_000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.monotonic_s, lambda: self.wall_s)


def test_clock_starts_at_the_wall_and_then_ignores_its_jumps():
    watch = Watch()
    clock = watch.clock()
    assert clock.now_ms() == NOW
    watch.wall_s -= 3600
    watch.monotonic_s += 1.5
    assert clock.now_ms() == NOW + 1500


def test_unmeasured_reference_is_the_wall_clock():
    watch = Watch()
    clock = watch.clock()
    assert clock.offset_ms == 0
    watch.wall_s -= 3600
    assert clock.offset_ms == -3_600_000


def test_measurement_takes_half_the_round_trip():
    watch = Watch()
    clock = watch.clock()
    clock.measure(NOW + 7_000 + 5, asked_s=50.0, answered_s=50.010)
    assert clock.offset_ms == pytest.approx(7_000, abs=1e-3)
    watch.wall_s -= 3600
    assert clock.offset_ms == pytest.approx(7_000, abs=1e-3)  # the wall no longer counts


def test_quick_measurement_beats_a_slow_one_until_it_is_old():
    watch = Watch()
    clock = watch.clock()
    clock.measure(NOW + 100, asked_s=50.0, answered_s=50.0)
    clock.measure(NOW + 104, asked_s=50.0, answered_s=50.010)  # 99 +- 5
    assert clock.offset_ms == pytest.approx(100, abs=1e-3)
    watch.monotonic_s = 150.0
    clock.measure(NOW + 100_106, asked_s=150.0, answered_s=150.006)  # 103 +- 3, against 100 +- 10 by age
    assert clock.offset_ms == pytest.approx(103, abs=1e-3)
    assert clock.steps == 0


def test_reference_set_anew_is_believed_at_once():
    watch = Watch()
    clock = watch.clock()
    for number in range(20):
        clock.measure(NOW + number, asked_s=50.0 + number / 1000, answered_s=50.0 + number / 1000)
    before = clock.now_ms()
    clock.measure(NOW - 600_000, asked_s=50.02, answered_s=50.03)
    assert clock.offset_ms == pytest.approx(-600_025, abs=1e-3)
    assert clock.steps == 1
    assert clock.now_ms() == before  # the timeline itself never moves
