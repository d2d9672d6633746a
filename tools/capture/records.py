"""A capture file: msgpack maps one after the other, so that any language reads it and a stream may be cut.

    {"boundgen_capture": 1, "captured_ms", "servers", "topics": [...], "replies": [...], "pipelines": {...}}
    {"kind": "request" | "reply", "topic", "partition", "offset", "timestamp_ms", "timestamp_type",
     "key": bytes | nil, "value": bytes | nil, "headers": [[name, bytes | nil], ...]}

A file begins with a header; each record is complete in itself and written in one piece. So files may be
joined with `cat` (a header may come anywhere), and one whose writer was killed lacks at most its end.
timestamp_type: 0 the producer's clock, 1 the broker's, -1 none. `pipelines` holds the pipelines of the
worker's configuration that the capture was given, if any. Unknown keys are ignored, unknown kinds skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgpack

from schemas.headers import Header

VERSION = 1
MARK = "boundgen_capture"
MAX_RECORD_BYTES = 1 << 30

Kind = Literal["request", "reply"]


class CaptureError(ValueError):
    """Bytes that are no capture, or of a version that is not ours."""


class Record(Protocol):
    """What is kept of a consumer's record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None

    @property
    def headers(self) -> Any: ...


@dataclass(frozen=True)
class CaptureHeader:
    """Where a capture comes from."""

    captured_ms: int
    servers: str
    topics: tuple[str, ...]
    replies: tuple[str, ...]
    pipelines: Mapping[str, Any] = field(default_factory=dict)  # name -> its configuration as plain values

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(
            {
                MARK: VERSION,
                "captured_ms": self.captured_ms,
                "servers": self.servers,
                "topics": list(self.topics),
                "replies": list(self.replies),
                "pipelines": dict(self.pipelines),
            }
        )
        return packed


@dataclass(frozen=True)
class Captured:
    """One record as the broker had it."""

    kind: Kind
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    @classmethod
    def of(cls, kind: Kind, record: Record) -> Captured:
        return cls(
            kind=kind,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            timestamp_type=record.timestamp_type,
            key=record.key,
            value=record.value,
            headers=tuple((name, value) for name, value in record.headers),
        )

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb({**vars(self), "headers": [list(each) for each in self.headers]})
        return packed


def parse(item: object) -> CaptureHeader | Captured | None:
    """One map of a capture; None for a kind that is not known. CaptureError for anything else."""
    if not isinstance(item, dict):
        raise CaptureError(f"a value of type {type(item).__name__} where a capture has a map: is this one?")
    try:
        if MARK in item:
            return _header(item)
        if item["kind"] not in ("request", "reply"):
            return None
        headers = tuple((str(name), value) for name, value in item["headers"])
        kept = {key: item[key] for key in Captured.__annotations__}
        return Captured(**{**kept, "headers": headers})
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"a record that lacks something: {error!r}") from error


def _header(item: Mapping[str, Any]) -> CaptureHeader:
    if item[MARK] != VERSION:
        raise CaptureError(f"{MARK} = {item[MARK]!r}: this boundgen reads version {VERSION}")
    return CaptureHeader(
        item["captured_ms"],
        item["servers"],
        tuple(item["topics"]),
        tuple(item["replies"]),
        item.get("pipelines", {}),
    )
