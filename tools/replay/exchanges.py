"""Requests of capture files, each with its recorded reply, in the order of the files.

Two passes: the first remembers where the replies are (about 300 bytes of memory each), the second streams the
requests. Of several replies to one request the first with its id counts. One thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.codec import DecodeError, decode_reply
from schemas.messages import Reply
from tools.capture.capture_files import CaptureReader
from tools.capture.matching import match_key, message_id
from tools.capture.records import Captured
from tools.replay.selection import Selection


@dataclass(frozen=True)
class Exchange:
    """A request and what was answered. `unread`: why a recorded reply could not be understood."""

    request: Captured
    request_id: str | None
    reply: Reply | None = None
    reply_record: Captured | None = None
    unread: str | None = None

    @property
    def name(self) -> str:
        """How to call it to a person."""
        who = "a request without a readable id" if self.request_id is None else f"request {self.request_id!r}"
        return f"{who} at {self.request.place}"


class CaptureSet:
    """Files read together. After `index`: the reply topics, the pipelines as captured, what was cut off."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.reply_topics: set[str] = set()
        self.pipelines: dict[str, Mapping[str, Any]] = {}
        self.cut: dict[Path, int] = {}  # file -> bytes of its broken end
        self._readers = [CaptureReader(path) for path in paths]
        self._replies: dict[bytes, list[tuple[int, int]]] = {}

    def index(self) -> None:
        """The first pass. UserError for a file that cannot be read."""
        for number, reader in enumerate(self._readers):
            for place, record in reader.records():
                if record.kind == "reply" and (mark := _mark(record)) is not None:
                    self._replies.setdefault(mark, []).append((number, place))
                    self.reply_topics.add(record.topic)
            for header in reader.headers:
                self.pipelines.update(header.pipelines)
            if reader.cut_bytes:
                self.cut[reader.path] = reader.cut_bytes

    def exchanges(self, selection: Selection) -> Iterator[Exchange]:
        """The selected requests."""
        taken = 0
        for reader in self._readers:
            for _, record in reader.records():
                if selection.limit is not None and taken >= selection.limit:
                    return
                if record.kind != "request" or not selection.wants_request(record):
                    continue
                exchange = self._answered(record)
                if selection.wants_reply(exchange.reply):
                    taken += 1
                    yield exchange

    def _answered(self, request: Captured) -> Exchange:
        request_id = message_id(request)
        mark = _mark(request)
        found: list[Exchange] = []
        for number, place in self._replies.get(mark, ()) if mark is not None else ():
            record = self._readers[number].record_at(place)
            try:
                reply = decode_reply(record.value or b"")
            except DecodeError as error:
                found.append(Exchange(request, request_id, None, record, str(error)))
                continue
            found.append(Exchange(request, request_id, reply, record))
            if reply.id == request_id:
                return found[-1]
        # A correlation id that several requests share must not lend one the reply of another.
        mine = [each for each in found if each.reply is None or each.reply.id is None]
        return mine[0] if mine else Exchange(request, request_id)


def _mark(record: Captured) -> bytes | None:
    key = match_key(record)
    return None if key is None else hashlib.blake2b(key, digest_size=16).digest()
