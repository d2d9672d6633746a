"""Commits what is done: every `commit_interval_ms`, and once more when partitions or the process go.

On the event loop; one commit at a time, each bounded. Offsets are always explicit: what aiokafka would commit
by itself is its fetch position, past work in flight. The commit's metadata, `taken=150,130`, holds
Progress.taken: what the next owner needs to tell which records it gets again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from worker.logs import Throttle
from worker.metrics import PipelineMetrics
from worker.offsets import OffsetTracker, Progress

log = structlog.get_logger(__name__)

_TAKEN = "taken="


def commit_metadata(progress: Progress) -> str:
    """What is stored beside the offset."""
    return _TAKEN + ",".join(map(str, progress.taken))


def read_progress(offset: int, metadata: str | None) -> Progress:
    """A commit as it was stored; one of another program's says nothing beside its offset."""
    numbers = (metadata or "").removeprefix(_TAKEN).split(",")
    if not all(number.isdecimal() and number.isascii() for number in numbers):
        return Progress(offset)
    return Progress(offset, tuple(taken for number in numbers if (taken := int(number)) > offset))


class Committer:
    """The commits of one consumer. `failing_since_s` (time.monotonic) is for the watchdog."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        tracker: OffsetTracker,
        metrics: PipelineMetrics,
        *,
        interval_ms: int,
        timeout_ms: int,
        on_committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._consumer = consumer
        self._tracker = tracker
        self._metrics = metrics
        self._interval_s = interval_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._on_committed = on_committed
        self._one_at_a_time = asyncio.Lock()
        self._throttle = Throttle()
        self.failing_since_s: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.commit()

    async def commit(self) -> bool:
        """Commit what is new; whether all is stored now. Errors are counted, the next call tries again."""
        async with self._one_at_a_time:
            progress = self._tracker.to_commit()
            self._metrics.uncommitted.set(self._tracker.num_uncommitted)
            if not progress:  # what failed may be another owner's by now
                self.failing_since_s = None
                return True
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._consumer.commit(_offsets(progress))
            except (KafkaError, TimeoutError, OSError) as error:
                self._failed(error)
                return False
            self._tracker.committed(progress)
            self._metrics.uncommitted.set(self._tracker.num_uncommitted)
            self._metrics.commits_ok.inc()
            self.failing_since_s = None
            self._on_committed()
            return True

    def _failed(self, error: BaseException) -> None:
        self._metrics.commits_failed.inc()
        if self.failing_since_s is None:
            self.failing_since_s = time.monotonic()
        if (kept := self._throttle.allow("commit")) is not None:
            waited = f"no answer within {self._timeout_s:g} s (kafka.commit_timeout_ms)"
            log.warning(
                "commit failed: tried again; a crash now would repeat these records",
                records=self._tracker.num_uncommitted,
                error=waited if isinstance(error, TimeoutError) else repr(error),
                kept_back=kept,
            )


def _offsets(progress: dict[TopicPartition, Progress]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        partition: OffsetAndMetadata(each.offset, commit_metadata(each))
        for partition, each in progress.items()
    }
