"""One record into one producer, acked: together with others, or alone.

aiokafka sends what goes to one partition at one time as one batch, and a broker refuses a batch as a whole: a
record that is too large takes its neighbours down with it. So a record whose batch was too large is sent once
more in a batch of its own, and only then believed to be the guilty one.
"""

from __future__ import annotations

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError, UnknownTopicOrPartitionError
from aiokafka.partitioner import DefaultPartitioner

from worker.replies import Outgoing

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)

_choose_partition = DefaultPartitioner()  # by key, as the producer itself does


async def send_acked(producer: AIOKafkaProducer, record: Outgoing) -> None:
    """Return when all replicas have it. The caller bounds the time. Raises aiokafka's errors; one of
    TOO_LARGE is about this very record."""
    try:
        sent = await producer.send(
            record.topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=list(record.headers),
        )
        await sent
    except TOO_LARGE:
        await _send_alone(producer, record)


async def _send_alone(producer: AIOKafkaProducer, record: Outgoing) -> None:
    batch = producer.create_batch()
    batch.append(key=record.key, value=record.value, timestamp=None, headers=list(record.headers))
    sent = await producer.send_batch(batch, record.topic, partition=_partition(producer, record))
    await sent


def _partition(producer: AIOKafkaProducer, record: Outgoing) -> int:
    if record.partition is not None:
        return record.partition
    cluster = producer.client.cluster
    known = cluster.partitions_for_topic(record.topic)
    if not known:
        raise UnknownTopicOrPartitionError(record.topic)
    available = cluster.available_partitions_for_topic(record.topic)
    chosen: int = _choose_partition(record.key, sorted(known), sorted(available or known))
    return chosen
