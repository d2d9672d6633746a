"""Topics of a real broker, a folder, and `boundgen capture` over them; fixture `desk` of its tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from kafka_service import consumer_groups
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
        return asyncio.run(consumer_groups(self.bootstrap))

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


def read(path: Path) -> list[Captured]:
    return [record for _, record in CaptureReader(path).records()]
