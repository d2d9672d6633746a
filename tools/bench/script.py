"""A benchmark that is started as a program of its own, where only the engine is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tools.errors import UserError


def say(text: str) -> None:
    """A line of the report, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_script(main: Callable[[list[str]], None]) -> None:
    """`main` of the command line's arguments; a mistake of the user's is one line and ends with status 1."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
