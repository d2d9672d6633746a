"""Which captured requests are run again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.messages import Outcome, Reply
from tools.capture.matching import message_id
from tools.capture.records import Captured
from tools.errors import UserError


@dataclass(frozen=True)
class Selection:
    """None: whatever it is. Offsets are inclusive; moments are of the request's timestamp."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    ids: frozenset[str] | None = None
    outcomes: frozenset[Outcome] | None = None
    error_codes: frozenset[str] | None = None
    limit: int | None = None

    def wants_request(self, request: Captured) -> bool:
        """All that can be told without the reply."""
        return (
            (self.topics is None or request.topic in self.topics)
            and (self.partitions is None or request.partition in self.partitions)
            and (self.first_offset is None or request.offset >= self.first_offset)
            and (self.last_offset is None or request.offset <= self.last_offset)
            and (self.since_ms is None or request.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or request.timestamp_ms < self.until_ms)
            and (self.ids is None or message_id(request) in self.ids)
        )

    def wants_reply(self, reply: Reply | None) -> bool:
        """By what was answered then; a request without a recorded reply has no outcome."""
        if self.outcomes is not None and (reply is None or reply.outcome not in self.outcomes):
            return False
        if self.error_codes is None:
            return True
        return reply is not None and reply.error is not None and str(reply.error.code) in self.error_codes


def read_offsets(text: str | None) -> tuple[int | None, int | None]:
    """17, 17-, -40 or 17-40, both ends included; UserError for anything else."""
    if text is None:
        return None, None
    first, dash, last = text.partition("-")
    numbers = [each for each in (first, last) if each]
    if not numbers or not all(each.isdecimal() for each in numbers):
        raise UserError(f"--offsets = {text!r}: write 17, 17-, -40 or 17-40")
    low = int(first) if first else None
    high = int(last) if last else None if dash else low
    if low is not None and high is not None and low > high:
        raise UserError(f"--offsets = {text!r}: ends before it begins")
    return low, high
