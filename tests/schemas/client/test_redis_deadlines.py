"""Deadlines through a real Redis: by its clock, whatever ours says, and never at a request's expense."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest
from redis.asyncio import Redis

from schemas.client import Client
from schemas.client.redis_deadlines import RedisDeadlines
from schemas.codec import decode_request
from schemas.deadlines import CANCEL, GRACE_MS, deadline_key
from schemas.messages import Outcome

SLACK_MS = (
    60_000  # a machine may stall between two looks at a clock; the errors looked for are ten times that
)


async def redis_ms(redis: Redis) -> int:
    seconds, microseconds = await redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


@pytest.fixture
async def redis(redis_url):
    async with Redis.from_url(redis_url) as connection:
        yield connection


def deadlines(url: str, **changes: float) -> RedisDeadlines:
    return RedisDeadlines(url, **{"timeout_ms": 5000, "pause_s": 60, "refresh_s": 60, **changes})


async def test_deadline_and_cancellation_are_written_with_an_expiry(
    kafka, topics, responder, patient, redis_url, redis
):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with (
        responder(requests) as worker,
        Client(
            kafka, reply_topic=replies, topics={"p": requests}, redis_url=redis_url, settings=patient
        ) as client,
    ):
        reply = await client.score("p", ["a"], timeout_ms=120_000, id=replies)
        assert reply.outcome is Outcome.OK
        (request,) = worker.requests
        assert request.timeout_ms is None
        assert request.deadline_ms is not None
        key = deadline_key(replies)
        assert await redis.get(key) == b"%d" % request.deadline_ms
        assert await redis.pexpiretime(key) == request.deadline_ms + GRACE_MS
        assert abs(request.deadline_ms - 120_000 - await redis_ms(redis)) < SLACK_MS
        assert await client.cancel(replies)
        assert await redis.get(key) == CANCEL
        assert 0 < await redis.pttl(key) <= 600_000 + SLACK_MS
        assert client.redis_failures == 0


@pytest.mark.parametrize("minutes", [-10, 10])
async def test_a_wrong_clock_here_does_no_harm(
    kafka, topics, responder, patient, redis_url, redis, monkeypatch, minutes
):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    right = time.time
    async with responder(requests) as worker:
        monkeypatch.setattr(time, "time", lambda: right() + 60 * minutes)
        async with Client(
            kafka, reply_topic=replies, topics={"p": requests}, redis_url=redis_url, settings=patient
        ) as client:
            await client.score("p", ["a"], timeout_ms=60_000, id=replies)
        monkeypatch.undo()
    now = await redis_ms(redis)
    deadline_ms = worker.requests[0].deadline_ms
    assert deadline_ms is not None
    assert abs(deadline_ms - 60_000 - now) < SLACK_MS
    assert await redis.get(deadline_key(replies)) == b"%d" % deadline_ms


@pytest.mark.parametrize("minutes", [-10, 10])
async def test_records_are_dated_by_redis_clock(kafka, topics, responder, patient, redis_url, redis, minutes):
    """With or without a deadline: as if Redis' clock were minutes away from ours."""
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with (
        responder(requests) as worker,
        Client(
            kafka, reply_topic=replies, topics={"p": requests}, redis_url=redis_url, settings=patient
        ) as client,
    ):
        assert client._redis is not None
        assert client._redis._offset_ms is not None
        client._redis._offset_ms += 60_000 * minutes
        await client.score("p", ["a"], timeout_ms=60_000)
        await client.score("p", ["a"])
    now = await redis_ms(redis) + 60_000 * minutes
    assert all(abs(record.timestamp - now) < SLACK_MS for record in worker.records)
    deadline_ms = worker.requests[0].deadline_ms
    assert deadline_ms is not None
    assert abs(deadline_ms - 60_000 - now) < SLACK_MS


@pytest.mark.parametrize("mode", ["refuse", "swallow"])
async def test_redis_failing_fails_no_request(kafka, topics, responder, patient, redis_proxy, mode):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    settings = dataclasses.replace(patient, redis_timeout_ms=10, redis_pause_s=600)
    url = f"redis://{redis_proxy.address}/0"
    async with responder(requests) as worker:
        redis_proxy.set_mode(mode)  # from the start: no clock, so the message carries the timeout
        async with Client(
            kafka, reply_topic=replies, topics={"p": requests}, redis_url=url, settings=settings
        ) as client:
            assert (await client.score("p", ["a"], timeout_ms=60_000)).outcome is Outcome.OK
            assert not await client.cancel("r")
            assert client.redis_failures >= 1
        redis_proxy.set_mode("pass")
        async with Client(
            kafka, reply_topic=replies, topics={"p": requests}, redis_url=url, settings=settings
        ) as client:
            await client.score("p", ["b"])
            redis_proxy.set_mode(mode)  # half-way: the clock is known
            handles = [await client.submit("p", ["c"], timeout_ms=60_000) for _ in range(20)]
            assert {reply.outcome async for reply in client.collect(handles)} == {Outcome.OK}
            assert not await client.cancel("r")
            assert client._redis is not None
            assert client._redis.skipped >= 15  # the first failure keeps the others from trying
    assert (worker.requests[0].deadline_ms, worker.requests[0].timeout_ms) == (None, 60_000)
    assert all(request.deadline_ms is not None for request in worker.requests[2:])
    assert decode_request(worker.records[0].value) == worker.requests[0]


async def test_redis_is_tried_again_after_the_pause(redis_proxy, redis):
    link = deadlines(f"redis://{redis_proxy.address}/0", pause_s=0.05)
    redis_proxy.set_mode("refuse")
    await link.start()
    try:
        assert link.now_ms() is None
        redis_proxy.set_mode("pass")
        async with asyncio.timeout(30):
            await link._measured.wait()
            now = link.now_ms()
            assert now is not None
            while not await link.write("again", now + 60_000):
                await asyncio.sleep(0.02)
        assert await redis.get(deadline_key("again")) == b"%d" % (now + 60_000)
    finally:
        await link.close()


async def test_many_writes_share_a_round_trip_and_keep_their_order(redis_url, redis):
    link = deadlines(redis_url)
    await link.start()
    try:
        now = link.now_ms()
        assert now is not None
        writes = [link.write(f"many-{number}", now + 60_000 + number) for number in range(300)]
        writes += [link.cancel(f"many-{number}") for number in range(300)]
        assert await asyncio.gather(*writes) == [True] * 600
        values = await redis.mget([deadline_key(f"many-{number}") for number in range(300)])
        assert values == [CANCEL] * 300
    finally:
        await link.close()


async def test_a_caller_who_stops_waiting_disturbs_no_other(redis_url, redis):
    """redis-py once gave the answer of a cancelled command to the next caller."""
    link = deadlines(redis_url)
    await link.start()
    try:
        for number in range(50):
            abandoned = asyncio.create_task(link.write(f"abandoned-{number}", 10**13))
            await asyncio.sleep(0)
            abandoned.cancel()
            assert await link.write(f"kept-{number}", 10**13 + number)
        values = await redis.mget([deadline_key(f"kept-{number}") for number in range(50)])
        assert values == [b"%d" % (10**13 + number) for number in range(50)]
        assert link.failures == 0
    finally:
        await link.close()


async def test_cancelling_needs_redis(kafka, topics, patient):
    replies = await topics(1, "replies")
    async with Client(kafka, reply_topic=replies, settings=patient) as client:
        with pytest.raises(ValueError, match="redis_url = None"):
            await client.cancel("r")
