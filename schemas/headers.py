"""Record headers: where a reply goes and what it carries back, in the two dialects in use.

Spring: kafka_correlationId (opaque bytes), kafka_replyTopic, kafka_replyPartition (4 bytes, big-endian).
FastStream: correlation_id, reply_to. Both are read; where they disagree Spring's name counts. A null value is
an absent header; of duplicates the last one counts, as Kafka's own lastHeader has it.

Contract: correlation ids and W3C trace context are echoed byte for byte. The headers that route (reply topic,
reply_to, partition) are not: a reply that carried them would itself be a request for a reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from schemas.plain import quote

Header = tuple[str, bytes | None]
Dialect = Literal["spring", "faststream"]

SPRING_CORRELATION: Final = "kafka_correlationId"
SPRING_TOPIC: Final = "kafka_replyTopic"
SPRING_PARTITION: Final = "kafka_replyPartition"
FASTSTREAM_CORRELATION: Final = "correlation_id"
FASTSTREAM_TOPIC: Final = "reply_to"
TRACE: Final = ("traceparent", "tracestate")

MAX_CORRELATION_BYTES: Final = 1024
MAX_TRACE_BYTES: Final = 1024  # W3C: at least 512 for tracestate must be carried on; longer ones are dropped
_TOPIC: Final = re.compile(rb"[A-Za-z0-9._-]{1,249}")  # Kafka's own rule


class HeaderError(ValueError):
    """A header that cannot be followed: no reply is possible."""

    def __init__(self, field: str, value: bytes, reason: str) -> None:
        super().__init__(f"header {field} = {quote(value)}: {reason}")
        self.field = field
        self.value = value


@dataclass(frozen=True)
class ReplyAddress:
    """Where the reply goes (topic None: nobody asked for one) and the headers it carries back untouched."""

    topic: str | None = None
    partition: int | None = None
    correlation_id: bytes | None = None
    echo: tuple[Header, ...] = ()


def parse_headers(headers: Sequence[Header]) -> ReplyAddress:
    """Read the reply address of a record. Raises HeaderError for a reply topic, partition or correlation id
    that cannot be used; every other header may hold anything."""
    last: dict[str, bytes] = {name: value for name, value in headers if value is not None}
    echo: list[Header] = []
    for name in (SPRING_CORRELATION, FASTSTREAM_CORRELATION):
        if (value := last.get(name)) is not None:
            if len(value) > MAX_CORRELATION_BYTES:
                raise HeaderError(name, value, f"longer than {MAX_CORRELATION_BYTES} bytes")
            echo.append((name, value))
    correlation_id = echo[0][1] if echo else None
    echo += [
        (name, last[name]) for name in TRACE if len(last.get(name, b"")) <= MAX_TRACE_BYTES and name in last
    ]
    return ReplyAddress(_topic(last), _partition(last), correlation_id, tuple(echo))


def _topic(last: dict[str, bytes]) -> str | None:
    for name in (SPRING_TOPIC, FASTSTREAM_TOPIC):
        value = last.get(name)
        if not value:  # FastStream writes an empty reply_to where no reply is wanted
            continue
        if not _TOPIC.fullmatch(value) or value in (b".", b".."):
            raise HeaderError(name, value, "not a topic name")
        return value.decode("ascii")
    return None


def _partition(last: dict[str, bytes]) -> int | None:
    value = last.get(SPRING_PARTITION)
    if value is None:
        return None
    if len(value) != 4:
        raise HeaderError(SPRING_PARTITION, value, f"{len(value)} bytes, expected 4 (a big-endian int)")
    partition = int.from_bytes(value, "big", signed=True)
    if partition < 0:
        raise HeaderError(SPRING_PARTITION, value, f"partition {partition} is negative")
    return partition


def request_headers(
    reply_topic: str, correlation_id: bytes, partition: int | None = None, dialect: Dialect = "spring"
) -> list[Header]:
    """Headers that ask for a reply. FastStream's dialect knows no partition: ValueError if one is given."""
    if dialect == "spring":
        headers: list[Header] = [(SPRING_CORRELATION, correlation_id), (SPRING_TOPIC, reply_topic.encode())]
        if partition is not None:
            headers.append((SPRING_PARTITION, partition.to_bytes(4, "big", signed=True)))
        return headers
    if partition is not None:
        raise ValueError(f"partition = {partition}: the faststream dialect cannot name a reply partition")
    return [(FASTSTREAM_CORRELATION, correlation_id), (FASTSTREAM_TOPIC, reply_topic.encode())]
