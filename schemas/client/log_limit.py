"""What aiokafka warns of while brokers are away, bounded: it says the same dozens of times a second and more.

A library must leave its user's handlers alone, so this is a filter on aiokafka's loggers and the client's,
from start() to close() of a client. Those of the process' other consumers and producers are the same loggers:
lines below a warning always pass, and a line that passes says how many it stands for. Any thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_INTERVAL_S = 10.0  # between two lines from one place in aiokafka's code
_LIMITED = ("aiokafka.", "schemas.client.")  # the client replaces a consumer five times a second, for ever
_SEEN = "boundgen_log_limit"  # on a record: another client's filter has let it pass


class LogLimit(logging.Filter):
    """Warnings and errors of one kind: the first in every interval, with the number of those left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[tuple[str, int], tuple[float, int]] = {}  # when, and how many were left out since

    def attach(self) -> None:
        """Idempotent, as `detach`."""
        for logger in _loggers():
            logger.addFilter(self)

    def detach(self) -> None:
        for logger in _loggers():
            logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or hasattr(record, _SEEN):
            return True
        place, now_s = (record.pathname, record.lineno), self._clock()
        last_s, left_out = self._passed.get(place, (now_s - _INTERVAL_S, 0))
        if now_s - last_s < _INTERVAL_S:
            self._passed[place] = (last_s, left_out + 1)
            return False
        self._passed[place] = (now_s, 0)
        setattr(record, _SEEN, True)
        if left_out:
            record.msg = f"{record.msg} (and {left_out} more like it)"
        return True


def _loggers() -> list[logging.Logger]:
    """All that aiokafka and the client have: a logger's filter does not see what its children say."""
    names = list(logging.root.manager.loggerDict)  # other threads may add to it
    return [logging.getLogger(name) for name in names if f"{name}.".startswith(_LIMITED)]
