"""Which partitions this member of a group holds, and where each of them starts.

On the event loop. aiokafka calls the two callbacks in its own task while the reading loop goes on; epochs
begin in the reading loop, so that no record is taken before it is known where its partition starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener

from worker.commits import read_progress
from worker.metrics import PipelineMetrics
from worker.offsets import OffsetTracker

log = structlog.get_logger(__name__)

START_POSITION_S = 5.0


class Assignment(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka is untyped
    """`on_revoked` finishes, within a bound, what cannot be taken back. `unannounced`: partitions of which no
    commit says yet that we took anything."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        tracker: OffsetTracker,
        metrics: PipelineMetrics,
        on_revoked: Callable[[], Awaitable[None]],
        on_assigned: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._tracker = tracker
        self._metrics = metrics
        self._on_revoked = on_revoked
        self._on_assigned = on_assigned
        self.generation = 0  # of assignments received
        self.complete = False  # whether the group has given us our partitions (possibly none)
        self.unannounced: set[TopicPartition] = set()

    async def on_partitions_revoked(self, revoked: object) -> None:
        """aiokafka's callback: no record is read until `on_partitions_assigned`."""
        self.complete = False
        if self._tracker.partitions:
            await self._on_revoked()
        self._tracker.end(self._tracker.partitions)
        self.unannounced.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """aiokafka's callback."""
        self._metrics.rebalances.inc()
        self._metrics.partitions.set(len(assigned))
        log.info("partitions assigned", partitions=sorted(each.partition for each in assigned))
        self.generation += 1
        self.complete = True
        self._on_assigned()

    async def begin_epochs(self) -> None:
        """Find where newly assigned partitions start. Until that is known nothing is read from them."""
        new = self._consumer.assignment() - self._tracker.partitions if self.complete else set()
        if not new:
            return
        generation = self.generation
        async with asyncio.timeout(START_POSITION_S):
            # The public call for this drops the metadata that we stored beside the offset.
            stored = await self._consumer._coordinator.fetch_committed_offsets(list(new))
            starts: dict[TopicPartition, int] = {}
            for partition in new:
                if partition not in stored:
                    starts[partition] = await self._consumer.position(partition)
        if not self.complete or generation != self.generation:  # what we were told is no longer so
            return
        for partition in new:
            if partition in stored:
                commit = stored[partition]
                self._consumer.seek(partition, commit.offset)
                self._tracker.begin(partition, read_progress(commit.offset, commit.metadata))
            else:
                self._tracker.begin_first(partition, starts[partition])
        self.unannounced |= new
