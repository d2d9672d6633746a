"""How a command tells of long work: a spinner with the time on a terminal, one line a step elsewhere.

Everything goes to standard error, so that standard output holds results alone. One thread.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

LINE_SECONDS = 10.0


class Steps:
    """Call it with the name of each step as it begins; leaving the context ends the last one.

    Where there is no terminal, a step that goes on is told again every `line_s` while `advance` is called.
    """

    def __init__(self, console: Console | None = None, line_s: float = LINE_SECONDS) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._spinner: Progress | None = None
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._spinner = Progress(*columns, console=self._console, transient=True)
        self._task: TaskID | None = None
        self._step: str | None = None
        self._begun = self._told = 0.0
        self._line_s = line_s
        self._pieces = 0

    def __enter__(self) -> Steps:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end("done" if kind is None else "failed")
        if self._spinner is not None:
            self._spinner.stop()

    def __call__(self, step: str) -> None:
        """The step before is done, this one begins."""
        self._end("done")
        self._step, self._begun, self._pieces = step, time.monotonic(), 0
        self._told = self._begun
        if self._spinner is not None:
            self._task = self._spinner.add_task(escape(step), total=None)
        else:
            self._console.print(f"{escape(step)} ...")

    def advance(self, pieces: int = 1) -> None:
        """So many more pieces of this step are done; 0: it still goes on."""
        if self._step is None:
            return
        self._pieces += pieces
        now = time.monotonic()
        if self._spinner is not None and self._task is not None:
            self._spinner.update(self._task, description=f"{escape(self._step)}: {self._pieces}")
        elif now - self._told >= self._line_s:
            self._told = now
            self._console.print(f"{escape(self._step)}: {self._pieces} done after {now - self._begun:.0f} s")

    def _end(self, how: str) -> None:
        if self._step is None:
            return
        if self._spinner is not None and self._task is not None:
            self._spinner.remove_task(self._task)
        self._console.print(f"{escape(self._step)}: {how}, {time.monotonic() - self._begun:.1f} s")
        self._step = None
