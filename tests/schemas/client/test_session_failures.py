"""Where there is no reply: what is raised, how soon, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from schemas.client import Client, ClientError, ReplyTimeout
from schemas.client.errors import ClientClosedError, MissingRepliesError, SendError, UnknownTopicError


async def test_no_reply_is_a_timeout(kafka, topics, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    settings = dataclasses.replace(patient, grace_ms=50, wait_ms=60)
    async with Client(kafka, reply_topic=replies, topics={"p": requests}, settings=settings) as client:
        with pytest.raises(ReplyTimeout, match=r"no reply to request 'r-1' within 70 ms"):
            await client.score("p", ["a"], id="r-1", timeout_ms=20)
        with pytest.raises(TimeoutError):
            await client.score("p", ["a"])
        handles = [await client.submit("p", ["a"], id=f"r-{number}", timeout_ms=1) for number in range(3)]
        with pytest.raises(MissingRepliesError, match="3 requests without a reply") as caught:
            _ = [reply async for reply in client.collect(handles)]
        assert sorted(caught.value.errors) == ["r-0", "r-1", "r-2"]


async def test_unknown_topics_are_told_at_once_and_never_created(kafka, topics, patient):
    replies = await topics(1, "replies")
    with pytest.raises(UnknownTopicError, match=r"no\.such\.topic"):
        await Client(kafka, reply_topic="no.such.topic", settings=patient).start()
    async with asyncio.timeout(20), Client(kafka, reply_topic=replies, settings=patient) as client:
        for _ in range(2):
            with pytest.raises(UnknownTopicError, match=r"'boundgen\.nowhere\.requests' does not exist"):
                await client.score("nowhere", ["a"])


async def test_no_broker(patient):
    settings = dataclasses.replace(patient, start_timeout_s=5)
    with pytest.raises(ClientError, match=r"bootstrap_servers = '127\.0\.0\.1:1'"):
        await Client("127.0.0.1:1", settings=settings).start()


async def test_brokers_that_fall_silent_cost_no_more_than_the_requests_own_wait(kafka_proxy, topics, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    settings = dataclasses.replace(patient, grace_ms=300, send_timeout_s=600)
    async with asyncio.timeout(60):
        client = Client(kafka_proxy.address, reply_topic=replies, topics={"p": requests}, settings=settings)
        async with client:
            kafka_proxy.set_mode("swallow")
            with pytest.raises(
                SendError, match="took no request within 320 ms"
            ):  # its topic is not known yet
                await client.score("p", ["a"], timeout_ms=20)
            kafka_proxy.set_mode("pass")
            kafka_proxy.reset_connections()  # what was swallowed never comes
            with contextlib.suppress(ReplyTimeout):
                await client.score("p", ["a"], timeout_ms=20)
            kafka_proxy.set_mode("swallow")
            with pytest.raises(ReplyTimeout):  # handed over, never acknowledged
                await client.score("p", ["a"], timeout_ms=20)
            kafka_proxy.set_mode("pass")
            kafka_proxy.reset_connections()


@pytest.mark.parametrize(
    ("samples", "changes", "text"),
    [
        ([], {}, "samples: .*at least 1 item"),
        (["a", {"title": None}], {}, r"samples\[1\]\.fields\.title: .* got None"),
        (["a"], {"priority": 10}, "priority: .*got 10"),
        (["a"], {"id": ""}, "id: .*got ''"),
        (["\ud800"], {}, r"samples\[0\]\.text: not Unicode"),
        (["a"], {"options": {"x": float("nan")}}, "options.x: nan is not a finite number"),
        (["a"], {"options": [1]}, "options: should be a map, got a list of 1"),
        (["a"], {"timeout_ms": "5"}, "timeout_ms: should be a finite number, got '5'"),
        (["a"], {"timeout_ms": float("nan")}, "timeout_ms: should be a finite number, got nan"),
    ],
)
async def test_bad_requests_never_leave(kafka, topics, patient, samples, changes, text):
    replies = await topics(1, "replies")
    async with Client(kafka, reply_topic=replies, topics={"p": replies}, settings=patient) as client:
        with pytest.raises(ValueError, match=text):
            await client.score("p", samples, **changes)


async def test_too_large_for_a_record(kafka, topics, patient):
    replies = await topics(1, "replies")
    async with Client(kafka, reply_topic=replies, topics={"p": replies}, settings=patient) as client:
        with pytest.raises(SendError, match="more than a record may be"):
            await client.score("p", ["x" * (2 << 20)])


async def test_closing_fails_what_is_pending(kafka, topics, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    client = Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient)
    with pytest.raises(ClientClosedError, match="the client is new"):
        await client.score("p", ["a"])
    async with client:
        waiting = asyncio.create_task(client.score("p", ["a"]))
        handle = await client.submit("p", ["b"])
        while len(client._pending) < 2:
            await asyncio.sleep(0.01)
    with pytest.raises(ClientClosedError):
        await waiting
    with pytest.raises(ClientClosedError):
        await handle.reply()
    with pytest.raises(ClientClosedError, match="the client is closed"):
        await client.submit("p", ["c"])


async def test_a_caller_who_stops_waiting_leaves_nothing_behind(kafka, topics, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with Client(kafka, reply_topic=replies, topics={"p": requests}, settings=patient) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.score("p", ["a"])
        assert len(client._pending) == 0


async def test_pending_requests_are_bounded(kafka, topics, patient):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    settings = dataclasses.replace(patient, max_pending=2)
    async with Client(kafka, reply_topic=replies, topics={"p": requests}, settings=settings) as client:
        await client.submit("p", ["a"])
        await client.submit("p", ["b"])
        with pytest.raises(ClientError, match="max_pending = 2"):
            await client.submit("p", ["c"])
