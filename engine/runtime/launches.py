"""How long launches hold the interpreter: processor time of the launching thread outside the driver's calls.

Processor time, so that waiting for the interpreter or for another lane's launch does not count. One meter a
lane, written by its thread alone; any thread may read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchReport:
    """Of all launches since the meters began: how many, and Python's part of one in milliseconds."""

    launches: int
    python_mean_ms: float
    python_max_ms: float


NO_LAUNCHES = LaunchReport(0, 0.0, 0.0)


class LaunchMeter:
    """Adds up one lane's launches."""

    def __init__(self) -> None:
        self.launches, self.total_s, self.max_s = 0, 0.0, 0.0

    def note(self, seconds: float) -> None:
        self.launches += 1
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)


def report(meters: Iterable[LaunchMeter]) -> LaunchReport:
    """Of several lanes together; zeros without a launch."""
    counted = list(meters)
    launches = sum(each.launches for each in counted)
    total_s = sum(each.total_s for each in counted)
    most_s = max((each.max_s for each in counted), default=0.0)
    return LaunchReport(launches, 1e3 * total_s / launches if launches else 0.0, 1e3 * most_s)
