"""`boundgen capture` against a real broker: what is in the topics is in the file, and nobody notices."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from typer.testing import CliRunner

from kafka_service import create_topic, unique_topic
from schemas.codec import encode_reply, encode_request
from schemas.headers import request_headers
from schemas.messages import ModelInfo, Outcome, Reply, Request, Sample
from tools.capture.capture_files import CaptureReader
from tools.capture.records import Captured
from tools.cli import app

WAIT_SECONDS = 60.0
Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Sent:
    topic: str
    value: bytes | None
    headers: Headers = ()
    partition: int = 0
    key: bytes | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Desk:
    """A request topic of two partitions, a reply topic, a folder."""

    bootstrap: str
    requests: str
    replies: str
    folder: Path

    def send(self, *records: Sent) -> None:
        async def publish() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=0) as producer:
                for each in records:
                    await producer.send_and_wait(
                        each.topic,
                        each.value,
                        key=each.key,
                        partition=each.partition,
                        timestamp_ms=each.timestamp_ms,
                        headers=list(each.headers),
                    )

        asyncio.run(publish())

    def groups(self) -> set[str]:
        async def ask() -> set[str]:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return {name for name, *_ in await admin.list_consumer_groups()}
            finally:
                await admin.close()

        return asyncio.run(ask())

    @property
    def output(self) -> Path:
        return self.folder / "out.capture"

    def arguments(self, *more: str) -> list[str]:
        given = [self.requests, "--output", str(self.output), "--bootstrap-servers", self.bootstrap]
        return ["capture", *given, "--json", *more]

    def capture(self, *more: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, self.arguments(*more))
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        return found

    def request(self, name: str, headers: Headers | None = None, **where: Any) -> Sent:
        request = Request(id=name, pipeline="p", samples=(Sample(text="mouse"),))
        if headers is None:
            headers = request_headers(self.replies, b"c-" + name.encode())
        return Sent(self.requests, encode_request(request), headers, **where)

    def reply(self, name: str, headers: Headers | None = None) -> Sent:
        model = ModelInfo(name="m", digest="d" * 64)
        reply = Reply(id=name, outcome=Outcome.OK, results=({"id": 0},), model=model)
        if headers is None:
            headers = [("kafka_correlationId", b"c-" + name.encode())]
        return Sent(self.replies, encode_reply(reply), headers)


@pytest.fixture
def desk(kafka: str, tmp_path: Path) -> Desk:
    requests, replies = unique_topic("requests"), unique_topic("replies")
    asyncio.run(create_topic(kafka, requests, 2, {}))
    asyncio.run(create_topic(kafka, replies, 1, {}))
    return Desk(kafka, requests, replies, tmp_path)


def read(path: Path) -> list[Captured]:
    return [record for _, record in CaptureReader(path).records()]


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


def start(desk: Desk, *more: str) -> subprocess.Popen[str]:
    """The command as a process that follows, past its beginning."""
    command = [sys.executable, "-m", "tools", *desk.arguments("--follow", "--replies", desk.replies, *more)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "capturing" not in (line := process.stderr.readline()):
        assert line, "it ended"
    return process


def wait_for(desk: Desk, requests: int, replies: int) -> None:
    """Until the growing file holds so many."""
    give_up_s = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up_s:
        if desk.output.exists() and desk.output.stat().st_size:
            found = [each.kind for each in read(desk.output)]
            if (found.count("request"), found.count("reply")) == (requests, replies):
                return
        time.sleep(0.05)
    raise TimeoutError(f"not {requests} requests and {replies} replies")


def test_following_until_told_to_end(desk: Desk):
    desk.send(desk.request("before"), desk.reply("before"))
    process = start(desk, "--since", "1h")
    try:
        wait_for(desk, 1, 1)
        desk.send(desk.reply("r-1"))  # read before its request, and held
        time.sleep(1)
        desk.send(desk.request("r-1"), desk.request("r-2"), desk.reply("r-2"), desk.reply("stranger"))
        wait_for(desk, 3, 3)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["requests"] == 3
    assert CaptureReader(desk.output).cut_bytes == 0


def test_what_a_killed_capture_leaves_can_be_read(desk: Desk):
    process = start(desk, "--since", "1h")
    try:
        desk.send(*(desk.request(f"r-{number}") for number in range(5)))
        wait_for(desk, 5, 0)
    finally:
        process.kill()
        process.communicate()
    assert len(read(desk.output)) == 5


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
