"""Which dead letters a person means: places, times, and what the headers say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tools.errors import UserError
from tools.redrive.letters import Letter

_PLACE = re.compile(r"(?:(?P<topic>[A-Za-z0-9._-]+):)?(?P<partition>\d+)")


@dataclass(frozen=True)
class Place:
    """A partition; topic None: of every topic that is read."""

    topic: str | None
    partition: int

    def matches(self, topic: str, partition: int) -> bool:
        return self.partition == partition and self.topic in {None, topic}


@dataclass(frozen=True)
class Span:
    """What to read: these partitions (none: all), from (inclusive) and to (exclusive) these offsets."""

    partitions: tuple[Place, ...] = ()
    starts: tuple[tuple[Place, int], ...] = ()
    ends: tuple[tuple[Place, int], ...] = ()

    def includes(self, topic: str, partition: int) -> bool:
        return not self.partitions or any(each.matches(topic, partition) for each in self.partitions)

    def bounds(self, topic: str, partition: int, first: int, end: int) -> tuple[int, int]:
        """Of the records from `first` to before `end`, which to read; the last that was written counts."""
        for place, offset in self.starts:
            if place.matches(topic, partition):
                start = max(first, offset)
                break
        else:
            start = first
        ends = [offset for place, offset in self.ends if place.matches(topic, partition)]
        return start, max(start, min([end, *ends]))

    @property
    def named(self) -> tuple[Place, ...]:
        """Every place that was named, so that a mistyped one can be told of."""
        return (*self.partitions, *(place for place, _ in (*self.starts, *self.ends)))


@dataclass(frozen=True)
class Selection:
    """What a letter must be; None: anything. A letter without what is asked for does not match."""

    exception: re.Pattern[str] | None = None
    message: re.Pattern[str] | None = None
    original_topics: frozenset[str] = field(default_factory=frozenset)
    ids: frozenset[str] = field(default_factory=frozenset)
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, letter: Letter) -> bool:
        if self.since_ms is not None and letter.timestamp_ms < self.since_ms:
            return False
        if self.until_ms is not None and letter.timestamp_ms >= self.until_ms:
            return False
        if self.ids and letter.request_id not in self.ids:
            return False
        origin = letter.origin
        if self.original_topics and (origin is None or origin.topic not in self.original_topics):
            return False
        said = (None, None) if origin is None else (origin.exception_class, origin.message)
        wanted = (self.exception, self.message)
        return all(_found(pattern, text) for pattern, text in zip(wanted, said, strict=True))


def _found(pattern: re.Pattern[str] | None, text: str | None) -> bool:
    return pattern is None or (text is not None and pattern.search(text) is not None)


def read_place(written: str, option: str) -> Place:
    """[TOPIC:]PARTITION."""
    found = _PLACE.fullmatch(written)
    if found is None:
        raise UserError(f"{option} = {written!r}: must be PARTITION or TOPIC:PARTITION")
    return Place(found["topic"], int(found["partition"]))


def read_offsets(written: Sequence[str], option: str) -> tuple[tuple[Place, int], ...]:
    """[TOPIC:]PARTITION=OFFSET, once a partition."""
    read: dict[Place, int] = {}
    for each in written:
        place, equals, offset = each.partition("=")
        if not (equals and offset.isdecimal()):
            raise UserError(f"{option} = {each!r}: must be PARTITION=OFFSET or TOPIC:PARTITION=OFFSET")
        where = read_place(place, option)
        if where in read:
            raise UserError(f"{option} = {each!r}: partition {place} is given twice")
        read[where] = int(offset)
    named_topics = sorted(read.items(), key=lambda item: item[0].topic is None)  # the more exact one counts
    return tuple(named_topics)


def read_pattern(written: str | None, option: str) -> re.Pattern[str] | None:
    """A regular expression, found anywhere in the text."""
    if written is None:
        return None
    try:
        return re.compile(written)
    except re.error as error:
        raise UserError(f"{option} = {written!r}: not a regular expression: {error}") from error


def read_time(written: str | None, option: str) -> int | None:
    """Epoch milliseconds of `1760000000000` or of ISO 8601 (UTC where it names no zone)."""
    if written is None:
        return None
    if written.isdecimal():
        return int(written)
    try:
        when = datetime.fromisoformat(written)
    except ValueError as error:
        text = "must be ISO 8601, such as 2025-06-01T12:00:00+00:00, or epoch milliseconds"
        raise UserError(f"{option} = {written!r}: {text}") from error
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
