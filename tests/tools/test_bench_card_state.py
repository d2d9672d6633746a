"""nvidia-smi's lines as the benchmark reads them, and a monitor over programs that act it."""

from __future__ import annotations

import sys
import time

import pytest

from tools.bench.card_state import UNKNOWN, CardMonitor, CardState, parse_state, typical

ACTED = """
import sys, time
assert sys.argv[1:] == ["--query-gpu=clocks.sm,power.draw", "--id=GPU-7",
                        "--format=csv,noheader,nounits", "-lms", "50"], sys.argv
for line in ("1980, 120.53", "1620, 700.10", "[N/A], 690"):
    print(line, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("1980, 612.34\n", CardState(1980, 612.34)),
        ("345, 76.02", CardState(345, 76.02)),
        ("[N/A], 98.10", CardState(None, 98.1)),
        ("1755, [Not Supported]", CardState(1755, None)),
        ("[Unknown Error], [Unknown Error]", UNKNOWN),
        ("No devices were found", UNKNOWN),
        ("", UNKNOWN),
        ("1980, 612.34, 3", UNKNOWN),
    ],
)
def test_lines(line: str, state: CardState) -> None:
    assert parse_state(line) == state


def test_medians_of_what_is_known() -> None:
    states = [CardState(1980, 100), CardState(None, 300), CardState(1600, 200), UNKNOWN]
    assert typical(states) == CardState(1790, 200)
    assert typical([]) == UNKNOWN


def test_a_monitor_keeps_what_came_while_something_ran() -> None:
    start = time.monotonic()
    with CardMonitor("GPU-7", (sys.executable, "-c", ACTED)) as monitor:
        while monitor.during(start, time.monotonic()).watts != 690 and time.monotonic() < start + 30:
            time.sleep(0.01)
        assert monitor.during(start, time.monotonic()) == CardState(1800, 690)
        assert monitor.during(start - 20, start - 10) == UNKNOWN


def test_without_nvidia_smi_nothing_is_known() -> None:
    with CardMonitor(program=("/nowhere/nvidia-smi",)) as monitor:
        assert monitor.during(0, time.monotonic()) == UNKNOWN
