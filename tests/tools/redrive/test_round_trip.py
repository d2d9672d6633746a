"""Worker, dead letter, redrive, worker: what was mended is answered, what was not comes back and stays."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgpack
from typer.testing import CliRunner

from schemas.deadletter import parse_origin
from schemas.headers import request_headers
from schemas.messages import Outcome
from tools.broker_state import count_records
from tools.cli import app
from worker_service import Mouth, Site


async def redrive(site: Site, *arguments: str) -> tuple[int, int]:
    """(exit code, letters sent)"""
    where = [site.dead_letters, "--bootstrap-servers", site.bootstrap, "--rate", "0", "--json"]
    found = await asyncio.to_thread(CliRunner().invoke, app, ["redrive", *where, *arguments])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, json.loads(found.stdout.splitlines()[-1])["sent"]


async def buried(site: Site) -> int:
    return await count_records({"bootstrap_servers": site.bootstrap}, [site.dead_letters], site.partitions)


async def test_mended_records_are_answered_and_broken_ones_come_back(sites: Any) -> None:
    allowed = await sites(partitions=2)
    mistaken = replace(allowed, settings={"replies": {"topics": ["boundgen.elsewhere"]}})
    good = msgpack.packb({"v": 1, "id": "good", "pipeline": "numbers", "samples": [{"text": "42"}]})
    broken = msgpack.packb({"v": 9, "id": "broken"})
    async with Mouth(allowed) as mouth:
        with mistaken.worker():
            for value, name in ((good, b"good"), (broken, b"broken")):
                headers = request_headers(allowed.replies, name)
                await mouth.producer.send_and_wait(
                    allowed.topic, value, key=b"key", partition=1, headers=headers
                )
            await allowed.caught_up()
        assert (await buried(allowed), mouth.answers) == (2, [])
        assert await redrive(allowed) == (0, 0)
        assert await redrive(allowed, "--send") == (0, 2)
        with allowed.worker():
            await mouth.until(lambda: len(mouth.answers) == 2)
            await allowed.caught_up()
            assert await redrive(allowed, "--from-offset", "1=2", "--send") == (0, 1)
            await mouth.until(lambda: len(mouth.answers) == 3)
            await allowed.caught_up()
            # A dead letter three times stays one.
            assert await redrive(allowed, "--from-offset", "1=3", "--send") == (1, 0)
    outcomes = [answer.reply.outcome for answer in mouth.by_correlation[b"broken"]]
    assert outcomes == [Outcome.INVALID] * 2
    (answer,) = mouth.by_correlation[b"good"]
    assert (answer.reply.outcome, answer.reply.results) == (Outcome.OK, ({"id": 0, "number": 42},))
    assert await buried(allowed) == 4
    assert not [name for name, _ in answer.record.headers if name.startswith("kafka_dlt-")]
    await check_letters(allowed, broken)


async def check_letters(site: Site, broken: bytes) -> None:
    """The letters of the broken record: same bytes, one more attempt each time, and no larger."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=site.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(site.dead_letters, 1)])
        letters = [await consumer.getone() for _ in range(4)][1:]
    assert {letter.value for letter in letters} == {broken}
    assert [parse_origin(letter.headers).attempts for letter in letters] == [1, 2, 3]
    assert len({len(letter.headers) for letter in letters}) == 1
    assert {letter.key for letter in letters} == {b"key"}
