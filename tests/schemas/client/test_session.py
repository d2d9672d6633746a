"""The client end to end, on a real broker: every outcome comes back, and a missing reply says why."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from aiokafka import AIOKafkaProducer

from schemas.client import Client, ClientError
from schemas.client.errors import (
    ReplyDecodeError,
)
from schemas.codec import encode_reply
from schemas.messages import ErrorCode, ErrorInfo, Outcome, Reply, Request, Sample


async def test_score_with_every_kind_of_sample(kafka, topics, responder, patient):
    requests, replies = await topics(4, "requests"), await topics(3, "replies")
    async with (
        responder(requests) as worker,
        Client(kafka, reply_topic=replies, topics={"relevance": requests}, settings=patient) as client,
    ):
        samples = [{"query": "red shoes", "price": 12.5}, "plain text", Sample(id="sku-9", token_ids=(1, 2))]
        reply = await client.score("relevance", samples, id="r-1", priority=3, options={"top": 2})
    assert (reply.id, reply.outcome, reply.usage.samples) == ("r-1", Outcome.OK, 3)
    assert [row["id"] for row in reply.results] == [0, 1, "sku-9"]
    assert [row["text"] for row in reply.results] == [None, "plain text", None]
    assert reply.results[0]["fields"] == {"query": "red shoes", "price": 12.5}
    (request,) = worker.requests
    assert (request.pipeline, request.priority, request.options) == ("relevance", 3, {"top": 2})
    assert (request.deadline_ms, request.timeout_ms) == (None, None)


@pytest.mark.parametrize("dialect", ["spring", "faststream"])
async def test_both_dialects(kafka, topics, responder, patient, dialect):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    settings = dataclasses.replace(patient, dialect=dialect)
    async with (
        responder(requests) as worker,
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=settings) as client,
    ):
        assert (await client.score("p", ["a"])).outcome is Outcome.OK
    names = {name for name, _ in worker.records[0].headers}
    assert names == (
        {"kafka_correlationId", "kafka_replyTopic"} if dialect == "spring" else {"correlation_id", "reply_to"}
    )


async def test_a_reply_partition_of_ones_own(kafka, topics, responder, patient):
    requests, replies = await topics(1, "requests"), await topics(4, "replies")
    settings = dataclasses.replace(patient, reply_partition=2)
    async with (
        responder(requests) as worker,
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=settings) as client,
    ):
        assert (await client.score("p", ["a"])).outcome is Outcome.OK
    assert ("kafka_replyPartition", b"\x00\x00\x00\x02") in worker.records[0].headers
    settings = dataclasses.replace(patient, reply_partition=9)
    with pytest.raises(ClientError, match="reply_partition = 9"):
        await Client(kafka, reply_topic=replies, settings=settings).start()


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.OK])
async def test_every_outcome_is_a_reply(kafka, topics, responder, patient, outcome):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    error = ErrorInfo(code=ErrorCode.INTERNAL, message="because")
    async with (
        responder(requests) as worker,
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient) as client,
    ):
        worker.answer = lambda request: [Reply(id=request.id, outcome=outcome, error=error)]
        reply = await client.score("p", ["a"])
    assert (reply.outcome, reply.error) == (outcome, error)


async def test_submit_and_collect_in_order_of_arrival(kafka, topics, responder, patient):
    requests, replies = await topics(4, "requests"), await topics(3, "replies")
    async with (
        responder(requests),
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient) as client,
    ):
        handles = [await client.submit("p", [f"text {number}"], id=f"r-{number}") for number in range(50)]
        collected = [reply async for reply in client.collect(handles)]
        assert sorted(reply.id or "" for reply in collected) == sorted(handle.id for handle in handles)
        for number, handle in enumerate(handles):
            assert (await handle.reply()).results[0]["text"] == f"text {number}"
        assert [reply async for reply in client.collect([])] == []


async def test_replies_belong_to_their_request_even_with_equal_ids_and_a_shared_topic(
    kafka, topics, responder, patient
):
    requests, replies = await topics(2, "requests"), await topics(2, "replies")
    shared = {"reply_topic": replies, "topics": {"p": requests}, "settings": patient}
    async with responder(requests), Client(kafka, **shared) as one, Client(kafka, **shared) as other:
        pairs = [
            (client, f"{name} {number}")
            for number in range(10)
            for name, client in (("a", one), ("b", other))
        ]
        found = await asyncio.gather(*(client.score("p", [text], id="same") for client, text in pairs))
        assert [reply.results[0]["text"] for reply in found] == [text for _, text in pairs]
        assert one.ignored_replies <= 10


async def test_duplicates_and_foreign_records_are_ignored(kafka, topics, responder, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with (
        responder(requests) as worker,
        AIOKafkaProducer(bootstrap_servers=kafka) as producer,
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient) as client,
    ):
        await producer.send_and_wait(replies, None, key=b"tombstone")
        await producer.send_and_wait(replies, b"\xc1", headers=[("kafka_correlationId", b"\xff\x00")])
        await producer.send_and_wait(replies, b"\xc1", headers=[("correlation_id", None), ("x", b"")])
        worker.answer = lambda request: [
            Reply(id=request.id, outcome=Outcome.OK, attempt=attempt) for attempt in (1, 2, 3)
        ]
        assert (await client.score("p", ["a"])).attempt == 1
        assert (await client.score("p", ["b"])).attempt == 1
        assert client.ignored_replies >= 3  # the foreign one and both duplicates of the first


async def test_a_reply_that_cannot_be_read_is_an_error_with_its_cause(kafka, topics, responder, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with (
        responder(requests) as worker,
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient) as client,
    ):
        worker.answer = lambda request: [encode_reply(Reply(id=request.id, outcome=Outcome.OK))[:-2]]
        with pytest.raises(ReplyDecodeError, match=r"'r-9' cannot be read: truncated"):
            await client.score("p", ["a"], id="r-9")


async def test_a_request_as_it_is(kafka, topics, responder, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with (
        responder(requests) as worker,
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient) as client,
    ):
        request = Request(id="r", pipeline="p", samples=(Sample(text="a"),), deadline_ms=5, priority=9)
        handle = await client.submit_request(request, wait_ms=30_000)
        assert (await handle.reply()).id == "r"
    assert worker.requests == [request]


@pytest.mark.parametrize("url", ["http://redis:6379", "localhost:6379", ""])
def test_a_url_that_is_none_of_redis_is_named(url: str):
    with pytest.raises(ValueError, match=r"^redis_url = '.*:…': Redis URL must specify"):
        Client("localhost:1", reply_topic="replies", redis_url=url)


def test_a_password_in_a_wrong_url_is_not_shown():
    with pytest.raises(ValueError, match="redis_url") as caught:
        Client("localhost:1", reply_topic="replies", redis_url="http://user:secret@redis")
    assert "secret" not in str(caught.value)
