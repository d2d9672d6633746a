"""Expired requests look at Redis once more: extended ones go on, the others leave, each once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from redis.asyncio import Redis

from schemas.deadlines import CANCEL, deadline_key, deadline_value
from schemas.messages import ErrorCode, Outcome
from tcp_proxy import TcpProxy
from worker.deadlines import Deadline
from worker.offsets import Place
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.redis_line import LineOptions
from worker.second_look import SecondLook
from worker.verdicts import refusal

EXPIRED = refusal(ErrorCode.DEADLINE_EXCEEDED, "over")
MINUTE = 60_000


class Ends:
    """A second look and what it decided."""

    def __init__(self, store: DeadlineStore) -> None:
        self.store = store
        self.revived: list[Work] = []
        self.finished: dict[str | None, Outcome] = {}
        self.look = SecondLook(store, self.revived.append, self._finish)

    def _finish(self, work: Work, verdict: Verdict) -> None:
        assert work.request_id not in self.finished
        self.finished[work.request_id] = verdict.outcome

    def expire(self, horizon_ms: int = MINUTE) -> Work:
        """A work whose deadline passed a second ago, taken."""
        now = self.store.clock.now_ms()
        record = ConsumerRecord("t", 0, 0, now, 0, None, None, None, 0, 0, ())
        work = Work(Place(TopicPartition("t", 0), 0, 1), record, 0, now, time.perf_counter())
        work.request_id = uuid.uuid4().hex
        work.deadline = Deadline(now - 1000, now + horizon_ms)
        return work

    async def settled(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.finished) + len(self.revived) < count:
                await asyncio.sleep(0.01)


@pytest.fixture
async def ends(redis_proxy: TcpProxy) -> AsyncIterator[Ends]:
    url = f"redis://{redis_proxy.address}/0"
    store = DeadlineStore(LineOptions(url, timeout_ms=500, retry_ms=3_600_000, refresh_ms=3_600_000))
    await store.start()
    yield Ends(store)
    await store.close()


async def set_key(redis_url: str, work: Work, value: bytes) -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.set(deadline_key(work.request_id or ""), value, px=MINUTE)


async def test_extended_goes_on_cancelled_and_others_leave(ends: Ends, redis_url: str):
    extended, cancelled, passed, unknown = works = [ends.expire() for _ in range(4)]
    await set_key(redis_url, extended, deadline_value(int(time.time() * 1000) + MINUTE // 2))
    await set_key(redis_url, cancelled, CANCEL)
    await set_key(redis_url, passed, deadline_value(int(time.time() * 1000) - 20_000))
    for work in works:
        ends.look.take(work, EXPIRED)
    await ends.settled(4)
    assert ends.revived == [extended]
    assert extended.deadline is not None
    assert not extended.deadline.expired(ends.store.clock.now_ms())
    assert ends.finished == {
        cancelled.request_id: Outcome.CANCELLED,
        passed.request_id: Outcome.EXPIRED,
        unknown.request_id: Outcome.EXPIRED,
    }
    assert len(ends.look) == 0


async def test_a_flood_costs_few_round_trips(ends: Ends):
    for _ in range(2000):
        ends.look.take(ends.expire(), EXPIRED)
    before = ends.store.line_counters.questions
    await ends.settled(2000)
    assert ends.store.line_counters.questions - before == 4
    assert ends.store.line_counters.timeouts == 0


async def test_what_redis_may_not_extend_leaves_at_once(ends: Ends):
    work = ends.expire(horizon_ms=0)
    ends.look.take(work, EXPIRED)
    assert ends.finished == {work.request_id: Outcome.EXPIRED}


async def test_without_redis_they_leave_at_once(ends: Ends, redis_proxy: TcpProxy):
    redis_proxy.set_mode("refuse")
    first, second = ends.expire(), ends.expire()
    ends.look.take(first, EXPIRED)
    await ends.settled(1)
    assert not ends.store.available
    ends.look.take(second, EXPIRED)
    assert ends.finished.keys() == {first.request_id, second.request_id}


async def test_drained_ones_are_decided_by_nobody_else(ends: Ends, redis_proxy: TcpProxy):
    redis_proxy.set_mode("delay", 0.05)
    drained = ends.expire()
    ends.look.take(drained, EXPIRED)
    await asyncio.sleep(0.01)  # the lookup is under way
    assert ends.look.drain() == [drained]
    later = ends.expire()
    ends.look.take(later, EXPIRED)
    await ends.settled(1)
    assert ends.finished == {later.request_id: Outcome.EXPIRED}
    assert ends.revived == []
