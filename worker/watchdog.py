"""Ends the process rather than let it limp: no progress, a loop that stands still, commits that fail.

A thread of its own, so that a blocked event loop cannot silence it. It reads a few numbers of other threads
and never writes any. `complaints` is also what /health reports.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from worker.settings import WatchdogSettings

log = structlog.get_logger(__name__)

EXIT_STALLED = 70  # EX_SOFTWARE
CHECKS_A_BOUND = 10


class Watched(Protocol):
    """What the watchdog sees of a stream. All *_s of time.monotonic."""

    @property
    def name(self) -> str: ...
    @property
    def num_inflight(self) -> int: ...
    @property
    def idle_or_settled_s(self) -> float: ...
    @property
    def read_s(self) -> float: ...
    @property
    def commits_failing_since_s(self) -> float | None: ...


@dataclass
class Heartbeat:
    """Moved by a task of the event loop."""

    beat_s: float


def find_complaints(
    settings: WatchdogSettings, streams: Sequence[Watched], heartbeat: Heartbeat, now_s: float
) -> list[str]:
    """What has stood still for longer than it may."""
    found = []
    if (stalled_s := now_s - heartbeat.beat_s) * 1000 > settings.loop_ms:
        found.append(f"the event loop has stood still for {stalled_s:.1f} s")
    for stream in streams:
        stuck_s = now_s - stream.idle_or_settled_s
        if stream.num_inflight and stuck_s * 1000 > settings.progress_ms:
            found.append(
                f"{stream.name}: {stream.num_inflight} records taken, none settled for {stuck_s:.1f} s"
            )
        if (silent_s := now_s - stream.read_s) * 1000 > settings.poll_ms:
            found.append(f"{stream.name}: the reading loop has stood still for {silent_s:.1f} s")
        since_s = stream.commits_failing_since_s
        if since_s is not None and (now_s - since_s) * 1000 > settings.commit_ms:
            found.append(f"{stream.name}: commits have failed for {now_s - since_s:.1f} s")
    return found


class Watchdog:
    """`on_stall` may try to close in order; the process ends `close_ms` later whatever it does."""

    def __init__(
        self,
        settings: WatchdogSettings,
        streams: Sequence[Watched],
        on_stall: Callable[[str], None],
        close_ms: int,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._settings = settings
        self._streams = streams
        self._on_stall = on_stall
        self._close_s = close_ms / 1000
        self._end = end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.heartbeat = Heartbeat(time.monotonic())

    @property
    def complaints(self) -> list[str]:
        return find_complaints(self._settings, self._streams, self.heartbeat, time.monotonic())

    def start(self) -> None:
        self.heartbeat.beat_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        settings = self._settings
        shortest_ms = min(settings.loop_ms, settings.progress_ms, settings.poll_ms, settings.commit_ms)
        while not self._stop.wait(shortest_ms / 1000 / CHECKS_A_BOUND):
            if complaints := self.complaints:
                reason = "; ".join(complaints)
                log.critical("no progress: the process ends, its records go to the next owner", reason=reason)
                with suppress(RuntimeError):  # the event loop may be closed already
                    self._on_stall(reason)
                if not self._stop.wait(self._close_s):
                    self._end(EXIT_STALLED)
                return
