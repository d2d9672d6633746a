"""Reads topics from outside: partitions are assigned by hand, no group is joined, nothing is committed.

On the event loop. Only topics that exist are asked about: asking for others could create them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from schemas.client.log_limit import LogLimit
from schemas.client.stopping import stop_consumer
from tools.broker_state import IDLE_MS, count_partitions
from tools.errors import UserError

POLL_RECORDS = 500
FETCH_BYTES = 16 << 20
STALL_S = 30.0  # no record and no progress for so long before the end: an open transaction, a lost leader


@dataclass(frozen=True)
class Span:
    """Which part of the topics: from a moment or an offset on (else the beginning), to a last offset."""

    since_ms: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    partitions: frozenset[int] | None = None


async def find_partitions(options: Mapping[str, Any], topics: Sequence[str]) -> dict[str, int]:
    """Partitions of each topic; UserError for one that does not exist, or no broker."""
    try:
        known = await count_partitions(options)
    except (KafkaError, OSError) as error:
        raise UserError(f"{options['bootstrap_servers']}: no broker answers: {error!r}") from error
    for topic in topics:
        if topic not in known:
            raise UserError(f"topic {topic!r} does not exist at {options['bootstrap_servers']}")
    return {topic: known[topic] for topic in topics}


class TopicReader:
    """Several topics at once, in the order in which the broker gives them. A context manager."""

    def __init__(self, options: Mapping[str, Any], topics: Mapping[str, int], span: Span) -> None:
        """`topics`: name -> number of partitions. `options`: connection arguments of any aiokafka client."""
        self._span = span
        self._log_limit = LogLimit()  # following may go on over a night without a broker
        self._places = [
            TopicPartition(topic, number)
            for topic, count in topics.items()
            for number in range(count)
            if span.partitions is None or number in span.partitions
        ]
        self._consumer = AIOKafkaConsumer(
            **options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",  # what workers see
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_wait_ms=IDLE_MS // 2,
        )

    async def __aenter__(self) -> TopicReader:
        self._log_limit.attach()
        try:
            await self._consumer.start()
            self._consumer.assign(self._places)
            await self._seek()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await stop_consumer(self._consumer)
        self._log_limit.detach()

    async def to_end(self) -> AsyncIterator[Sequence[ConsumerRecord]]:
        """Up to what was there at the call. The embedded broker tells too early an end: reading goes on until
        nothing comes or what comes was made later."""
        if not self._places:
            return
        began_ms = int(time.time() * 1000)
        ends = await self._consumer.end_offsets(self._places)
        if self._span.last_offset is not None:
            ends = {each: min(end, self._span.last_offset + 1) for each, end in ends.items()}
        progress, progress_s = 0, time.monotonic()
        while True:
            positions = {each: await self._consumer.position(each) for each in self._places}
            reached = all(positions[each] >= ends[each] for each in self._places)
            records = await self.poll()
            if reached and (not records or any(each.timestamp > began_ms for each in records)):
                yield [each for each in records if each.timestamp <= began_ms]
                return
            if sum(positions.values()) != progress or records:
                progress, progress_s = sum(positions.values()), time.monotonic()
            elif time.monotonic() - progress_s > STALL_S:
                behind = {f"{each.topic}[{each.partition}]": ends[each] - positions[each] for each in ends}
                raise UserError(f"reading stands still before the end; records left: {behind}")
            yield records

    async def poll(self) -> Sequence[ConsumerRecord]:
        """What came within a moment, none after the span's last offset. UserError where the broker fails."""
        try:
            found = await self._consumer.getmany(timeout_ms=IDLE_MS, max_records=POLL_RECORDS)
        except KafkaError as error:
            raise UserError(f"reading failed: {error!r}") from error
        last = self._span.last_offset
        return [each for batch in found.values() for each in batch if last is None or each.offset <= last]

    async def _seek(self) -> None:
        span = self._span
        if not self._places:
            return
        if span.first_offset is not None:
            for place in self._places:
                self._consumer.seek(place, span.first_offset)
        elif span.since_ms is None:
            await self._consumer.seek_to_beginning(*self._places)
        else:
            # Ends first: what is written between the two questions must not be passed over.
            ends = await self._consumer.end_offsets(self._places)
            found = await self._consumer.offsets_for_times(dict.fromkeys(self._places, span.since_ms))
            for place in self._places:
                at = found.get(place)
                self._consumer.seek(place, ends[place] if at is None else at.offset)
