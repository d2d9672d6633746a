"""Replies find their way in both dialects, take back what they should, and one that is too large is told."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from kafka_service import MakeTopic
from schemas.codec import decode_reply, encode_request
from schemas.headers import Header
from schemas.messages import Outcome, Request, Sample
from worker_service import SERVICES, MakeSite, Mouth

WIDE = """
from fixed_cost import FixedCost
from engine.values import Rows
class Wide(FixedCost):
    def run(self, requests):
        return [Rows(tuple({"text": "x" * number} for number, *_ in tokens.ids)) for (tokens,) in requests]
"""


async def read_all(bootstrap: str, topic: str, partitions: int, count: int) -> list[ConsumerRecord]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        async with asyncio.timeout(30):
            return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


async def test_both_dialects_and_the_headers_that_come_back(sites: MakeSite, topics: MakeTopic) -> None:
    site = replace(await sites(), replies=await topics(partitions=3, name="replies"))
    replies = site.replies.encode()
    trace: list[Header] = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    ways: dict[str, list[Header]] = {
        "spring": [("kafka_replyTopic", replies), ("kafka_correlationId", b"\x00\xffspring"), *trace],
        "partition": [
            ("kafka_replyTopic", replies),
            ("kafka_replyPartition", (2).to_bytes(4, "big")),
            ("kafka_correlationId", b"p"),
        ],
        "faststream": [("reply_to", replies), ("correlation_id", b"fs"), ("other", b"stays here")],
        "bare": [("reply_to", replies)],
    }
    with site.worker():
        async with Mouth(site) as mouth:
            for name, headers in ways.items():
                request = Request(id=name, pipeline=site.pipeline, samples=(Sample(text="7"),))
                await mouth.send_raw(encode_request(request), headers=headers)
            records = await read_all(site.bootstrap, site.replies, 3, len(ways))
    by_id = {decode_reply(record.value).id: record for record in records}
    assert list(by_id["spring"].headers) == [("kafka_correlationId", b"\x00\xffspring"), *trace]
    assert list(by_id["partition"].headers) == [("kafka_correlationId", b"p")]
    assert by_id["partition"].partition == 2
    assert list(by_id["faststream"].headers) == [("correlation_id", b"fs")]
    assert list(by_id["bare"].headers) == []
    assert {record.key for record in records} == {name.encode() for name in ways}


async def test_a_reply_that_is_too_large_is_a_small_failure_of_its_own(
    apache_kafka: str, sites: MakeSite, topics: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # the embedded broker does not bound the size of a topic's messages
    (tmp_path / "wide.py").write_text(WIDE)
    site = await sites(model={"kind": "wide:Wide"}, settings={"replies": {"max_bytes": 100_000}})
    site = replace(site, replies=await topics(name="replies", configs={"max.message.bytes": "20000"}))
    monkeypatch.setenv("PYTHONPATH", f"{SERVICES}{os.pathsep}{tmp_path}")
    widths = {"fine": 10, "over the topic's limit": 50_000, "over ours": 200_000, "fine too": 1000}
    with site.worker():
        async with Mouth(site) as mouth:
            for name, width in widths.items():
                await mouth.send([width], request_id=name)
            replies = {name: await mouth.reply(name) for name in widths}
            await site.caught_up()
    assert [reply.outcome for reply in replies.values()] == [
        Outcome.OK,
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.OK,
    ]
    errors = [reply.error.message for reply in replies.values() if reply.error is not None]
    assert "MessageSizeTooLarge" in errors[0]
    assert "replies.max_bytes is 100000" in errors[1]
