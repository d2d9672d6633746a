"""Whether a record's reply address may be followed. Pure; reads the known topics, never asks a broker."""

from __future__ import annotations

from collections.abc import Callable

from schemas.headers import FASTSTREAM_TOPIC, SPRING_PARTITION, SPRING_TOPIC, Header, ReplyAddress
from schemas.messages import ErrorCode
from worker.records import Route, Verdict
from worker.verdicts import refusal

REFUSED = "boundgen.ReplyAddressRefused"  # in the dead letter's exception-fqcn
NumPartitions = Callable[[str], int | None]
"""How many partitions a topic has, as far as is known."""


class Router:
    """The allow-list of reply topics. `num_partitions` must be safe to call from any thread."""

    def __init__(self, allowed: frozenset[str], num_partitions: NumPartitions) -> None:
        self._allowed = allowed
        self._num_partitions = num_partitions

    def route(self, address: ReplyAddress, headers: tuple[Header, ...]) -> Route | Verdict | None:
        """Where the reply goes; None if nobody asked for one; a Verdict (dead letter only) if it may not."""
        topic, partition = address.topic, address.partition
        if topic is None:
            return None
        if topic not in self._allowed:
            field = (
                SPRING_TOPIC
                if any(name == SPRING_TOPIC and value for name, value in headers)
                else FASTSTREAM_TOPIC
            )
            message = f"header {field} = {topic!r}: not among the reply topics that this worker may write to"
            return refusal(ErrorCode.REPLY_TOPIC_NOT_ALLOWED, message, field, dead=REFUSED)
        known = self._num_partitions(topic)
        if partition is not None and known is not None and partition >= known:
            message = f"header {SPRING_PARTITION} = {partition}: {topic} has {known} partitions"
            return refusal(ErrorCode.REPLY_TOPIC_NOT_ALLOWED, message, SPRING_PARTITION, dead=REFUSED)
        return Route(topic, partition, address.echo)
