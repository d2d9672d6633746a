"""Dead letters: a record that cannot be processed, kept byte for byte with the headers that say why.

The names and encodings are Spring Kafka's (kafka_dlt-*; numbers big-endian, 4 bytes for the partition and the
attempts, 8 for offset and timestamp), so that its tools read them. Contract: however often a record is
re-driven and dead-lettered again, it carries one set of these headers, the latest, of bounded size; all other
headers stay as they were, in order, nulls and duplicates included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemas.headers import Header

PREFIX: Final = "kafka_dlt-"
MAX_MESSAGE_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 256  # topics and groups end at 249 and 256 in practice
_TOPIC_MAX_CHARS: Final = 249


@dataclass(frozen=True)
class Origin:
    """Where a dead letter comes from and why it is one; None: the header is missing or unreadable."""

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    group: str | None
    exception_class: str | None
    message: str | None
    attempts: int


def dead_letter_topic(topic: str) -> str:
    """`<topic>-dlt`. Raises ValueError where that is longer than a topic name may be."""
    name = f"{topic}-dlt"
    if len(name) > _TOPIC_MAX_CHARS:
        raise ValueError(
            f"topic = {topic!r}: its dead letter topic would be longer than {_TOPIC_MAX_CHARS} characters"
        )
    return name


def dead_letter_headers(  # noqa: PLR0913 - one argument a header
    original_headers: Sequence[Header],
    *,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    group: str,
    exception_class: str,
    message: str,
    attempts: int = 1,
) -> list[Header]:
    """The headers of the dead letter of a record that came with `original_headers`.

    `attempts` says how often the record has been dead-lettered, this time included: `next_attempt(headers)`.
    """
    kept = [(name, value) for name, value in original_headers if not name.startswith(PREFIX)]
    return [
        *kept,
        (f"{PREFIX}original-topic", _text(topic, MAX_NAME_BYTES)),
        (f"{PREFIX}original-partition", _number(partition, 4)),
        (f"{PREFIX}original-offset", _number(offset, 8)),
        (f"{PREFIX}original-timestamp", _number(timestamp_ms, 8)),
        (f"{PREFIX}original-consumer-group", _text(group, MAX_NAME_BYTES)),
        (f"{PREFIX}exception-fqcn", _text(exception_class, MAX_NAME_BYTES)),
        (f"{PREFIX}exception-message", _text(message, MAX_MESSAGE_BYTES)),
        (f"{PREFIX}attempts", _number(attempts, 4)),
    ]


def parse_origin(headers: Sequence[Header]) -> Origin | None:
    """Read a dead letter's headers back; None where there are none of them. Never raises."""
    found = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    if not found:
        return None
    return Origin(
        topic=_read_text(found.get("original-topic")),
        partition=_read_number(found.get("original-partition"), 4),
        offset=_read_number(found.get("original-offset"), 8),
        timestamp_ms=_read_number(found.get("original-timestamp"), 8),
        group=_read_text(found.get("original-consumer-group")),
        exception_class=_read_text(found.get("exception-fqcn")),
        message=_read_text(found.get("exception-message")),
        attempts=max(1, _read_number(found.get("attempts"), 4) or 1),
    )


def next_attempt(headers: Sequence[Header]) -> int:
    """1 for a record that was never a dead letter, one more than its headers say for one that was."""
    origin = parse_origin(headers)
    return 1 if origin is None else origin.attempts + 1


def _text(value: str, max_bytes: int) -> bytes:
    encoded = value.encode("utf-8", "backslashreplace")  # a lone surrogate must not stop a dead letter
    whole: str = encoded[:max_bytes].decode("utf-8", "ignore")  # never half a character
    return whole.encode()


def _number(value: int, num_bytes: int) -> bytes:
    highest = (1 << (8 * num_bytes - 1)) - 1
    return min(max(value, -highest - 1), highest).to_bytes(num_bytes, "big", signed=True)


def _read_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _read_number(value: bytes | None, num_bytes: int) -> int | None:
    if value is None or len(value) != num_bytes:
        return None
    return int.from_bytes(value, "big", signed=True)
