"""Which recorded reply belongs to which request, and what is not compared; captures written by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.codec import encode_reply, encode_request
from schemas.deadletter import dead_letter_headers
from schemas.headers import Header
from schemas.messages import ErrorCode, ErrorInfo, Outcome, Reply, Request, Sample
from tools.capture.capture_files import CaptureWriter
from tools.capture.records import Captured, CaptureHeader
from tools.replay.exchanges import CaptureSet
from tools.replay.selection import Selection

NOW_MS = int(time.time() * 1000)
FIELDS = {"query": "wireless mouse", "title": "silent click"}


def request(name: str, offset: int, headers: Sequence[Header] = (), **fields: Any) -> Captured:
    message = Request(id=name, pipeline="relevance", samples=(Sample(fields=FIELDS),), **fields)
    return record("request", offset, encode_request(message), headers)


def reply(name: str | None, offset: int, headers: Sequence[Header] = (), **fields: Any) -> Captured:
    return record("reply", offset, encode_reply(Reply(id=name, **{"outcome": Outcome.OK, **fields})), headers)


def refused(name: str, offset: int, code: ErrorCode) -> Captured:
    return reply(name, offset, outcome=code.outcome, error=ErrorInfo(code=code, message="then"))


def record(kind: Any, offset: int, value: bytes | None, headers: Sequence[Header] = ()) -> Captured:
    return Captured(kind, f"{kind}s", 0, offset, NOW_MS - 3_600_000, 0, None, value, tuple(headers))


def write(path: Path, *records: Captured) -> Path:
    with CaptureWriter(path, CaptureHeader(0, "", (), ()), rotate_bytes=None, overwrite=True) as writer:
        for each in records:
            writer.put(each)
    return path


def matched(*files: Path) -> dict[int, int | None]:
    """Offset of each request -> offset of its reply."""
    captures = CaptureSet(files)
    captures.index()
    found = {}
    for each in captures.exchanges(Selection()):
        found[each.request.offset] = None if each.reply_record is None else each.reply_record.offset
    return found


def test_replies_may_come_before_their_requests_and_from_another_file(tmp_path: Path):
    first = write(tmp_path / "1", reply("b", 0), request("a", 0))
    second = write(tmp_path / "2", request("b", 1), reply("a", 1), request("c", 2))
    assert matched(first, second) == {0: 1, 1: 0, 2: None}


def test_of_two_replies_the_first_counts(tmp_path: Path):
    assert matched(write(tmp_path / "1", request("a", 0), reply("a", 0), reply("a", 1, attempt=2))) == {0: 0}


def test_a_shared_correlation_id_lends_nobody_anothers_reply(tmp_path: Path):
    shared: list[Header] = [("kafka_correlationId", b"same")]
    path = write(
        tmp_path / "1",
        request("a", 0, shared),
        request("b", 1, shared),
        request("c", 2, shared),
        reply("b", 0, shared),
        reply("a", 1, shared),
    )
    assert matched(path) == {0: 1, 1: 0, 2: None}


def test_a_reply_without_an_id_answers_what_could_not_be_read(tmp_path: Path):
    headers: list[Header] = [("correlation_id", b"x")]
    path = write(tmp_path / "1", record("request", 0, b"garbled", headers), reply(None, 4, headers))
    assert matched(path) == {0: 4}


def test_what_time_decided_is_run_and_not_compared(scene: Any, tmp_path: Path):
    path = write(
        tmp_path / "1",
        request("late", 0, timeout_ms=5),
        request("busy", 1),
        refused("late", 0, ErrorCode.DEADLINE_EXCEEDED),
        refused("busy", 1, ErrorCode.OVERLOADED),
    )
    found = scene.replay(scene.config(), files=[path])
    assert (found.status, found.findings["compared"]) == (3, 0)
    assert "nothing was compared" in found.told
    assert found.findings["timely"] == {"expired then, ok now": 1, "rejected then, ok now": 1}
    assert "which time decided" in found.told


def test_a_request_that_redis_had_extended_is_run(scene: Any, tmp_path: Path):
    path = write(tmp_path / "1", request("extended", 0, timeout_ms=-1), reply("extended", 0))
    found = scene.replay(scene.config(), files=[path])
    assert found.findings["outcomes"] == {"ok": 1}


def test_old_requests_expire_only_where_their_deadlines_are_kept(scene: Any, tmp_path: Path):
    path = write(tmp_path / "1", request("old", 0, deadline_ms=NOW_MS - 3_540_000), reply("old", 0))
    assert scene.replay(scene.config(), files=[path]).findings["outcomes"] == {"ok": 1}
    kept = scene.replay(scene.config(), "--deadlines", "keep", files=[path])
    assert (kept.status, kept.findings["outcomes"]) == (1, {"expired": 1})
    assert kept.findings["first"]["path"] == "outcome"


def test_a_dead_letter_is_run_as_the_record_that_it_was(scene: Any, tmp_path: Path):
    origin = dead_letter_headers(
        [],
        topic=scene.site.topic,
        partition=0,
        offset=9,
        timestamp_ms=NOW_MS,
        group="g",
        exception_class="boundgen.MalformedRequest",
        message="then",
    )
    path = write(tmp_path / "1", record("request", 0, b"garbled", origin))
    found = scene.replay(scene.config(), files=[path])
    assert (found.findings["outcomes"], found.findings["unanswered"]) == ({"invalid": 1}, 1)


def test_a_recorded_reply_that_cannot_be_read_is_said(scene: Any, tmp_path: Path):
    headers: list[Header] = [("kafka_correlationId", b"x")]
    path = write(tmp_path / "1", request("a", 0, headers), record("reply", 0, b"\xc1", headers))
    found = scene.replay(scene.config(), files=[path])
    assert found.status == 3
    (reason,) = found.findings["skipped"]
    assert reason.startswith("recorded reply unreadable")
