"""What a person sees of a run: a bar with rate and time left on a terminal, else a line every ten seconds.

Goes to standard error. Called by the writer's thread alone.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

LINE_SECONDS = 10.0


class BulkProgress:
    """A context manager; `update` after each part."""

    def __init__(self, rows_before: int, console: Console | None = None) -> None:
        """`rows_before` were done by an earlier run and do not count for the rate."""
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._rows_before = rows_before
        self._share_before: float | None = 0.0 if rows_before == 0 else None
        self._started = time.monotonic()
        self._told = self._started
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("reading", total=1.0)

    def __enter__(self) -> BulkProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, num_rows: int, num_failed: int, share: float) -> None:
        """Rows and failed ones in all, and the share of the input that they are."""
        now = time.monotonic()
        text = self.describe(num_rows, num_failed, share, now - self._started)
        if self._share_before is None:
            self._share_before = share  # the first part of a continuation: time left counts from here
        if self._bar is not None:
            self._bar.update(self._task, completed=share, description=text)
        elif now - self._told >= LINE_SECONDS:
            self._told = now
            self._console.print(text, markup=False)

    def describe(self, num_rows: int, num_failed: int, share: float, seconds: float) -> str:
        """One line: 12,288 rows (31%), 4,096 rows/s, 2 min left, 3 failed."""
        rate = (num_rows - self._rows_before) / max(seconds, 1e-9)
        failed = f", {num_failed:,} failed" if num_failed else ""
        gained = share - (self._share_before or 0.0)
        left = ""
        if self._share_before is not None and gained > 0:
            left = f", {duration(seconds * (1 - share) / gained)} left"
        return f"{num_rows:,} rows ({share:.0%}), {rate:,.0f} rows/s{left}{failed}"


def duration(seconds: float) -> str:
    """Two figures are enough: 45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
