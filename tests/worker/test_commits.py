"""What a commit's metadata says and how it is read back, whoever wrote it; when a failure is over."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from worker.commits import Committer, commit_metadata, read_progress
from worker.metrics import WorkerMetrics
from worker.offsets import MAX_OWNERS, OffsetTracker, Progress

BROKERS_LIMIT = 4096  # offset.metadata.max.bytes


@given(st.integers(0, 2**62), st.sets(st.integers(1, 10**6), max_size=MAX_OWNERS))
def test_round_trip(offset: int, ahead: set[int]) -> None:
    progress = Progress(offset, tuple(sorted((offset + each for each in ahead), reverse=True)))
    metadata = commit_metadata(progress)
    assert read_progress(offset, metadata) == progress
    assert len(metadata) < BROKERS_LIMIT


@pytest.mark.parametrize("metadata", [None, "", "taken=", "taken=x", "other", "taken=5,-1", "taken=²"])
def test_what_others_wrote_says_nothing(metadata: str | None) -> None:
    assert read_progress(3, metadata) == Progress(3)


def test_what_is_behind_the_offset_is_past() -> None:
    assert read_progress(5, "taken=9,5,2") == Progress(5, (9,))


async def test_a_failure_is_over_when_what_could_not_be_committed_is_another_owners() -> None:
    """Else the watchdog would end a worker that has nothing to commit any more."""
    tracker, partition = OffsetTracker(), TopicPartition("t", 0)
    consumer = AIOKafkaConsumer(group_id="g")  # subscribed to nothing: every commit fails
    committer = Committer(
        consumer, tracker, WorkerMetrics().for_pipeline("p"), interval_ms=100, timeout_ms=1000
    )
    tracker.begin(partition, Progress(0))
    place = tracker.take(partition, 0)
    assert place is not None
    tracker.done(place)
    assert not await committer.commit()
    assert committer.failing_since_s is not None
    tracker.end([partition])
    assert await committer.commit()
    assert committer.failing_since_s is None
    await consumer.stop()
