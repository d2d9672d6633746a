"""`boundgen capture` against a real broker: what is in the topics is in the file, and nobody notices."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from typer.testing import CliRunner

from capture_desk import Desk, Headers, Sent, read
from kafka_service import create_topic, unique_topic
from schemas.headers import request_headers
from tools.cli import app


def test_records_are_kept_as_the_broker_has_them(desk: Desk):
    odd: Headers = [("twice", b"1"), ("twice", None), ("bytes", b"\xff\x00"), ("empty", b"")]
    now_ms = int(time.time() * 1000)
    desk.send(
        desk.request("r-1", timestamp_ms=now_ms - 5_000),
        Sent(desk.requests, b"\xc1 no message", odd, partition=1, key=b"\xfe", timestamp_ms=now_ms),
        Sent(desk.requests, None, partition=1, key=b"k"),
    )
    counts = desk.capture()
    assert (counts["requests"], counts["replies"]) == (3, 0)
    found = {(each.partition, each.offset): each for each in read(desk.output)}
    assert set(found) == {(0, 0), (1, 0), (1, 1)}
    assert found[0, 0].value == desk.request("r-1").value
    assert (found[0, 0].timestamp_ms, found[0, 0].timestamp_type) == (now_ms - 5_000, 0)
    garbled = found[1, 0]
    assert (garbled.value, garbled.key, garbled.headers) == (b"\xc1 no message", b"\xfe", tuple(odd))
    assert (found[1, 1].value, found[1, 1].key) == (None, b"k")
    assert {each.topic for each in found.values()} == {desk.requests}


def test_the_brokers_own_timestamps_are_marked(desk: Desk, apache_kafka: str):
    topic = unique_topic("append")
    asyncio.run(create_topic(apache_kafka, topic, 1, {"message.timestamp.type": "LogAppendTime"}))
    desk.send(Sent(topic, b"x"))
    desk.capture(topic)
    assert [each.timestamp_type for each in read(desk.output)] == [1]


def test_only_matching_replies_and_the_digest_through_them(desk: Desk):
    faststream = request_headers(desk.replies, b"fast", dialect="faststream")
    desk.send(
        desk.request("r-1"),
        desk.request("r-2", faststream),
        desk.request("r-3", headers=[]),
        desk.reply("r-1"),
        desk.reply("r-1"),  # a worker died and it was answered twice
        desk.reply("r-2", [("correlation_id", b"fast")]),
        desk.reply("r-3", []),
        desk.reply("stranger"),
        Sent(desk.replies, b"garbled", [("kafka_correlationId", b"c-r-1")]),
        Sent(desk.replies, b"garbled"),
    )
    counts = desk.capture("--replies", desk.replies)
    assert (counts["requests"], counts["replies"]) == (3, 5)
    assert counts["models"] == {"d" * 64: 4}
    replies = [each for each in read(desk.output) if each.kind == "reply"]
    assert [each.offset for each in replies] == [0, 1, 2, 3, 5]


def test_no_group_appears_and_nothing_is_committed(desk: Desk):
    desk.send(desk.request("r-1"), desk.reply("r-1"))
    before = desk.groups()
    desk.capture("--replies", desk.replies)
    desk.capture("--replies", desk.replies, "--follow", "--since", "1h", "--limit", "1", "--overwrite")
    assert desk.groups() == before


def test_rotation(desk: Desk):
    desk.send(*(desk.request(f"r-{number}", [("pad", b"x" * 500)]) for number in range(20)))
    counts = desk.capture("--rotate-bytes", "2048")
    files = [Path(each) for each in counts["files"]]
    assert [each.name for each in files] == [
        f"out-{number:05d}.capture" for number in range(1, len(files) + 1)
    ]
    assert len(files) > 4
    assert all(each.stat().st_size <= 2048 for each in files)
    assert [each.offset for file in files for each in read(file)] == list(range(20))

    joined = desk.folder / "joined.capture"
    joined.write_bytes(b"".join(each.read_bytes() for each in files))
    assert len(read(joined)) == 20

    again = CliRunner().invoke(app, desk.arguments("--rotate-bytes", "2048"))
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    desk.capture("--rotate-bytes", "4096", "--overwrite")
    assert len(list(desk.folder.glob("out-*.capture"))) < len(files)


def test_a_record_larger_than_a_file_has_one_of_its_own(desk: Desk):
    desk.send(*(desk.request(f"r-{number}", [("pad", b"x" * 3_000)]) for number in range(3)))
    files = desk.capture("--rotate-bytes", "1024")["files"]
    assert [len(read(Path(each))) for each in files] == [1, 1, 1]


def test_since_until_and_limit(desk: Desk):
    now_ms = int(time.time() * 1000)
    desk.send(*(desk.request(f"r-{age}", timestamp_ms=now_ms - age * 60_000) for age in (50, 40, 30, 20, 10)))
    desk.capture("--since", "45m", "--until", "15m")
    assert [each.offset for each in read(desk.output)] == [1, 2, 3]
    desk.capture("--since", str(now_ms - 25 * 60_000), "--limit", "1", "--overwrite")
    assert [each.offset for each in read(desk.output)] == [3]


def test_wrong_use_is_said(desk: Desk):
    for arguments, words in (
        (["no.such.topic"], "'no.such.topic' does not exist"),
        (["--since", "yesterday"], "--since = 'yesterday'"),
        (["--replies", desk.requests], "among the request topics"),
        (["--output", str(desk.folder / "no" / "x")], "directory does not exist"),
        (["--config", str(desk.folder / "none.yaml")], "none.yaml"),
    ):
        result = CliRunner().invoke(app, desk.arguments(*arguments))
        assert result.exit_code == 2, result.output
        assert words in result.stderr
    assert not desk.output.exists()


def test_an_existing_file_is_not_touched(desk: Desk):
    desk.output.write_bytes(b"precious")
    result = CliRunner().invoke(app, desk.arguments())
    assert result.exit_code == 2
    assert "--overwrite" in result.stderr
    assert desk.output.read_bytes() == b"precious"


def test_help_shows_an_example():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        app, ["capture", "--help"]
    )
    assert result.exit_code == 0
    assert "Example: boundgen capture" in " ".join(result.output.split())
