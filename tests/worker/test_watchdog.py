"""What counts as standing still, and that the process ends when something does."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from worker.settings import WatchdogSettings
from worker.watchdog import EXIT_STALLED, Heartbeat, Watchdog, find_complaints

NOW = 1000.0
SETTINGS = WatchdogSettings(progress_ms=60_000, poll_ms=30_000, loop_ms=10_000, commit_ms=20_000)


@dataclass
class Stream:
    name: str = "relevance"
    num_inflight: int = 0
    idle_or_settled_s: float = NOW
    read_s: float = NOW
    commits_failing_since_s: float | None = None


@pytest.mark.parametrize(
    ("stream", "beat_s", "said"),
    [
        (Stream(), NOW, []),
        (Stream(num_inflight=5), NOW, []),
        (Stream(idle_or_settled_s=0), NOW, []),  # idle for long is no complaint
        (Stream(commits_failing_since_s=NOW - 19), NOW, []),
        (Stream(), NOW - 11, ["the event loop has stood still for 11.0 s"]),
        (
            Stream(num_inflight=5, idle_or_settled_s=NOW - 61),
            NOW,
            ["relevance: 5 records taken, none settled for 61.0 s"],
        ),
        (Stream(read_s=NOW - 31), NOW, ["relevance: the reading loop has stood still for 31.0 s"]),
        (Stream(commits_failing_since_s=NOW - 21), NOW, ["relevance: commits have failed for 21.0 s"]),
    ],
)
def test_complaints(stream: Stream, beat_s: float, said: list[str]) -> None:
    assert find_complaints(SETTINGS, [stream], Heartbeat(beat_s), NOW) == said


def test_the_process_is_told_and_then_ended() -> None:
    stream = Stream(num_inflight=1, idle_or_settled_s=time.monotonic() - 60, read_s=time.monotonic() + 60)
    told: list[str] = []
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    settings = WatchdogSettings(progress_ms=100, poll_ms=10_000, loop_ms=10_000, commit_ms=10_000)
    watchdog = Watchdog(settings, [stream], told.append, close_ms=50, end=end)
    watchdog.start()
    assert ended.wait(10)
    assert codes == [EXIT_STALLED]
    assert len(told) == 1
    assert told[0].startswith("relevance: 1 records taken, none settled")


def test_a_process_that_closes_in_time_is_not_ended() -> None:
    stream = Stream(num_inflight=1, idle_or_settled_s=time.monotonic() - 60, read_s=time.monotonic() + 60)
    codes: list[int] = []
    told = threading.Event()
    settings = WatchdogSettings(progress_ms=100, poll_ms=10_000, loop_ms=10_000, commit_ms=10_000)
    watchdog = Watchdog(settings, [stream], lambda _: told.set(), close_ms=60_000, end=codes.append)
    watchdog.start()
    assert told.wait(10)
    watchdog.stop()
    watchdog._thread.join(10)
    assert not watchdog._thread.is_alive()
    assert codes == []
