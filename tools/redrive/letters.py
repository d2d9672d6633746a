"""A dead letter, and the headers with which it goes back. Pure.

What goes back keeps its value and every header of its producer as they are; of the kafka_dlt-* headers one
set is kept, each of bounded size: a worker that gives the record up again counts on from
`kafka_dlt-attempts` and replaces the rest. Stack traces and the like, which Spring adds, stay in the dead
letter topic. So however often a record goes round, it does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from schemas.deadletter import MAX_MESSAGE_BYTES, PREFIX, Origin, parse_origin
from schemas.headers import Header
from schemas.salvage import find_request_id

KEPT: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "original-topic",
        "original-partition",
        "original-offset",
        "original-timestamp",
        "original-consumer-group",
        "exception-fqcn",
        "exception-message",
        "attempts",
    )
)


@dataclass(frozen=True)
class Letter:
    """One record of a dead letter topic; `timestamp_ms` is when it became one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @staticmethod
    def of(record: Any) -> Letter:
        """From aiokafka's ConsumerRecord."""
        where = (record.topic, record.partition, record.offset, record.timestamp)
        return Letter(*where, record.key, record.value, tuple(record.headers))

    @cached_property
    def origin(self) -> Origin | None:
        return parse_origin(self.headers)

    @cached_property
    def request_id(self) -> str | None:
        """The request's id, as far as the value can be read."""
        return None if self.value is None else find_request_id(self.value)


def redriven_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """The headers of a dead letter as they go back to its original topic."""
    last = {name: value for name, value in headers if name in KEPT}
    foreign = [header for header in headers if not header[0].startswith(PREFIX)]
    return (*foreign, *((name, _bounded(value)) for name, value in last.items()))


def _bounded(value: bytes | None) -> bytes | None:
    """Ours are shorter; another producer's may be of any length."""
    if value is None or len(value) <= MAX_MESSAGE_BYTES:
        return value
    return value[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore").encode()
