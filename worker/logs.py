"""Structured lines on standard error: JSON for machines, coloured columns for people.

Every line says what follows from it. Payloads are never logged. The libraries' own lines (aiokafka, redis)
take the same way out. Frequent events go through a Throttle, which says how many it kept back.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import structlog
from structlog.typing import Processor

from worker.settings import LogSettings


def configure_logging(settings: LogSettings) -> None:
    """Set up structlog and the standard library's root logger; once a process."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    render: list[Processor]
    if settings.format == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        plain = structlog.dev.plain_traceback
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(_LibraryThrottle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class Throttle:
    """At most one line a key and interval, with the number of those kept back."""

    def __init__(self, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._state: dict[str, tuple[float, int]] = {}

    def allow(self, key: str) -> int | None:
        """How many were kept back since the last line, or None: keep this one back too."""
        now_s = self._clock()
        last_s, kept = self._state.get(key, (-self._interval_s, 0))
        if now_s - last_s < self._interval_s:
            self._state[key] = (last_s, kept + 1)
            return None
        self._state[key] = (now_s, 0)
        return kept


class _LibraryThrottle(logging.Filter):
    """aiokafka says the same dozens of times a second while a broker is away: one line of a kind in 10 s."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle(interval_s=10.0)

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("aiokafka"):
            return True
        kept = self._throttle.allow(f"{record.name} {record.msg}")
        if kept:
            record.msg = f"{record.msg} (and {kept} more like it)"
        return kept is not None
