"""The card's SM clock and power while something is timed, as nvidia-smi tells them.

One nvidia-smi runs beside the whole benchmark and prints a line every 50 ms; a thread keeps the lines with
the time when they came. Without nvidia-smi, or where it says nothing, both values are None.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Thread
from types import TracebackType

PERIOD_MS = 50
QUERY = "--query-gpu=clocks.sm,power.draw"
STOP_S = 5.0


@dataclass(frozen=True)
class CardState:
    """None where it is not known."""

    sm_mhz: float | None = None
    watts: float | None = None


UNKNOWN = CardState()


def parse_state(line: str) -> CardState:
    """A line of `--format=csv,noheader,nounits`: "1980, 612.34"; what is no number ("[N/A]") is None."""
    fields = [_number(field) for field in line.split(",")]
    return CardState(*fields) if len(fields) == 2 else UNKNOWN


def typical(states: Iterable[CardState]) -> CardState:
    """The median of each value, of those that are known."""
    known = list(states)
    clocks = [state.sm_mhz for state in known if state.sm_mhz is not None]
    watts = [state.watts for state in known if state.watts is not None]
    return CardState(
        statistics.median(clocks) if clocks else None, statistics.median(watts) if watts else None
    )


class CardMonitor:
    """A context; `during` may be asked at any time within it."""

    def __init__(self, card: str | None = None, program: Sequence[str] = ("nvidia-smi",)) -> None:
        """`card`: its UUID, as nvidia-smi takes it; None where there is only one."""
        which = [] if card is None else [f"--id={card}"]
        how = ["--format=csv,noheader,nounits", "-lms", str(PERIOD_MS)]
        self._command = [*program, QUERY, *which, *how]
        self._process: subprocess.Popen[str] | None = None
        self._reader = Thread(target=self._read, daemon=True)
        self._states: list[tuple[float, CardState]] = []

    def __enter__(self) -> CardMonitor:
        try:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:  # not installed
            return self
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def during(self, start: float, stop: float) -> CardState:
        """Medians of what came between two times of time.monotonic()."""
        return typical(state for when, state in list(self._states) if start <= when <= stop)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._states.append((time.monotonic(), parse_state(line)))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
