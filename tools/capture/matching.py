"""Which replies belong to captured requests: by correlation id, else by the id of request and reply.

Remembers 16 bytes of each request (about 100 in memory). A reply may be read before its request while a
capture follows; so many are held for it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from schemas.codec import DecodeError, decode_reply, decode_request
from schemas.headers import HeaderError, parse_headers
from tools.capture.records import Captured

HELD_REPLIES = 10_000
HELD_BYTES = 64 << 20


class ReplyMatcher:
    """Requests and replies as they are read, each once."""

    def __init__(self) -> None:
        self._wanted: set[bytes] = set()
        self._held: OrderedDict[tuple[str, int, int], tuple[bytes, Captured]] = OrderedDict()
        self._held_bytes = 0

    def add_request(self, request: Captured) -> list[Captured]:
        """The held replies that answer it."""
        mark = _mark(request)
        if mark is None:
            return []
        self._wanted.add(mark)
        places = [place for place, (held, _) in self._held.items() if held == mark]
        return [self._release(place) for place in places]

    def answers(self, reply: Captured, *, hold: bool) -> bool:
        """Whether it answers a request that was added; otherwise it is held for one to come, if asked to."""
        mark = _mark(reply)
        if mark is None or mark in self._wanted:
            return mark is not None
        if hold:
            self._held[reply.topic, reply.partition, reply.offset] = (mark, reply)
            self._held_bytes += len(reply.value or b"")
            while len(self._held) > HELD_REPLIES or self._held_bytes > HELD_BYTES:
                self._release(next(iter(self._held)))
        return False

    def _release(self, place: tuple[str, int, int]) -> Captured:
        _, reply = self._held.pop(place)
        self._held_bytes -= len(reply.value or b"")
        return reply


def match_key(record: Captured) -> bytes | None:
    """What a request and its replies have in common; None where a record has nothing of the kind."""
    try:
        correlation_id = parse_headers(record.headers).correlation_id
    except HeaderError:
        correlation_id = None
    if correlation_id is not None:
        return b"c" + correlation_id
    request_id = message_id(record)
    return None if request_id is None else b"i" + request_id.encode()


def message_id(record: Captured) -> str | None:
    """The request's id in either kind of record, as far as it can be read."""
    decode = decode_request if record.kind == "request" else decode_reply
    try:
        return decode(record.value or b"").id
    except DecodeError as error:
        return error.request_id


def _mark(record: Captured) -> bytes | None:
    key = match_key(record)
    return None if key is None else hashlib.blake2b(key, digest_size=16).digest()
