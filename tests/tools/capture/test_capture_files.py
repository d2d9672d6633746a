"""Capture files that are cut, joined, foreign or of a later version."""

from __future__ import annotations

import re
import resource
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from tools.capture.capture_files import CaptureReader, CaptureWriter
from tools.capture.records import Captured, CaptureHeader
from tools.errors import UserError

HEADER = CaptureHeader(1, "kafka:9092", ("t",), ("r",), {"p": {"name": "p"}})
RECORD = Captured("request", "t", 3, 7, 1_700_000_000_000, 0, None, b"\xff", (("h", None), ("h", b"\x00")))


def write(path: Path, count: int) -> bytes:
    with CaptureWriter(path, HEADER, rotate_bytes=None, overwrite=True) as writer:
        for offset in range(count):
            writer.put(replace(RECORD, offset=offset))
    return path.read_bytes()


def test_a_disk_that_fills_up_is_told_and_what_was_written_is_kept(tmp_path: Path):
    """Where it shows: when the buffer is full, at a flush, or at the end."""
    path = tmp_path / "x.capture"
    record = replace(RECORD, value=b"x" * 5000)
    size = len(HEADER.pack()) + 3 * len(record.pack())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = f"{path}: File too large; what came before is kept, up to the last whole record"

    def capture(flush_at: int | None) -> None:
        with CaptureWriter(path, HEADER, rotate_bytes=None, overwrite=True) as writer:
            for offset in range(3):
                writer.put(replace(record, offset=offset))
                if offset == flush_at:
                    writer.flush()

    for flush_at in (0, 2, None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))  # as a full disk
        try:
            with pytest.raises(UserError, match=re.escape(said)) as raised:
                capture(flush_at)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(raised.value.__cause__, OSError)
        assert [each.offset for _, each in CaptureReader(path).records()] == [0, 1]


def test_every_cut_gives_the_whole_records_before_it(tmp_path: Path):
    path = tmp_path / "x.capture"
    whole = write(path, 3)
    header, record = len(HEADER.pack()), len(RECORD.pack())
    for size in range(header, len(whole) + 1):
        path.write_bytes(whole[:size])
        reader = CaptureReader(path)
        found = list(reader.records())
        assert len(found) == (size - header) // record
        assert reader.cut_bytes == (size - header) % record
        assert reader.headers == [HEADER]
        for place, each in found:
            assert reader.record_at(place) == each


def test_joined_files_are_one_capture(tmp_path: Path):
    path = tmp_path / "x.capture"
    path.write_bytes(write(path, 2) * 2)
    reader = CaptureReader(path)
    assert [each.offset for _, each in reader.records()] == [0, 1, 0, 1]
    assert reader.headers == [HEADER, HEADER]


def test_unknown_kinds_and_keys_are_passed_over(tmp_path: Path):
    path = tmp_path / "x.capture"
    more = msgpack.packb({**msgpack.unpackb(RECORD.pack()), "later": 1})
    path.write_bytes(HEADER.pack() + msgpack.packb({"kind": "note"}) + more)
    assert [each for _, each in CaptureReader(path).records()] == [RECORD]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (HEADER.pack()[:-1], "ends within its header"),
        (RECORD.pack(), "does not begin with a header"),
        (b"hello", "type int where a capture has a map"),
        (msgpack.packb({"boundgen_capture": 2}), "version 1"),
        (HEADER.pack() + b"\xc1", "at byte"),
        (HEADER.pack() + msgpack.packb({"kind": "reply"}), "lacks something"),
    ],
)
def test_what_is_no_capture_is_said(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "x.capture"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        list(CaptureReader(path).records())
