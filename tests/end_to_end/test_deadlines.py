"""Every way that a request's time can end, through Kafka, Redis and a real worker process.

One worker serves all tests of the module; its Redis stands behind a fault proxy. Its model takes one request
at a time and can be held, so that others wait behind it for as long as a test wants. Every number is sent
once: what the model's own list of numbers lacks never reached it.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from schemas.deadlines import CANCEL, deadline_key, deadline_value
from schemas.messages import Outcome
from tcp_proxy import TcpProxy
from tools.worker_process import WorkerProcess
from worker_service import MakeSite, Mouth, Site, make_site

MINUTES = 60_000  # ms
LONG = 5 * MINUTES  # a timeout that no test lives to see
SHORT = 300  # ms, one that passes while a test waits
RETRY_MS = 2000  # the breaker's window
REDIS_CAP_MS = 100  # wide: a busy machine must not look like a broken Redis
SETTINGS = {
    "redis": {"timeout_ms": REDIS_CAP_MS, "retry_ms": RETRY_MS},
    "queue": {"overload_factor": 0},  # or the first held batch makes all others hopeless
}

numbers = itertools.count(1000)


@dataclass(frozen=True)
class Served:
    """A worker at a site, and the proxy before its Redis."""

    site: Site
    worker: WorkerProcess
    proxy: TcpProxy

    async def total(self, name: str, **labels: str) -> float:
        return await asyncio.to_thread(self.worker.total, name, **labels)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(30):
            while not await condition():
                await asyncio.sleep(0.02)

    async def redis_answers(self) -> None:
        """Return when the worker asks Redis again."""
        await self.until(lambda: self._available(1))

    async def _available(self, value: float) -> bool:
        return await self.total("boundgen_redis_available") == value


@pytest.fixture(scope="module")
def served(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    redis = urlsplit(redis_url)
    proxy = TcpProxy(redis.port or 6379, target_host=redis.hostname or "127.0.0.1")
    folder = tmp_path_factory.mktemp("deadlines")
    made = make_site(
        kafka, folder, redis_url=f"redis://{proxy.address}/0", model={"requests": 1}, settings=SETTINGS
    )
    site = asyncio.run(made)
    try:
        with site.worker() as worker:
            yield Served(site, worker, proxy)
            # After all tests: whatever was over before its model ran never reached it.
            for outcome in (Outcome.EXPIRED, Outcome.CANCELLED):
                assert worker.total("boundgen_model_requests_total", outcome=outcome.value) == 0
                assert worker.total("boundgen_requests_total", outcome=outcome.value) > 0
    finally:
        proxy.close()


@pytest.fixture
async def mouth(served: Served) -> AsyncIterator[Mouth]:
    await served.redis_answers()
    async with Mouth(served.site) as open_mouth:
        yield open_mouth


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


async def redis_ms(redis: Redis) -> int:
    seconds, microseconds = await redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


@asynccontextmanager
async def busy_model(mouth: Mouth) -> AsyncIterator[None]:
    """The model is held while the block runs; what is sent meanwhile waits."""
    site, number = mouth.site, next(numbers)
    site.release.unlink(missing_ok=True)
    held = await mouth.send([f"{number} hold"])
    await site.model_holds(number)
    try:
        yield
    finally:
        site.release.touch()
        assert (await mouth.reply(held)).outcome is Outcome.OK


async def taken(served: Served, count: int) -> None:
    """Return when so many requests wait for the model."""

    async def waiting() -> bool:
        return await served.total("boundgen_queue_requests") >= count

    await served.until(waiting)


async def test_expired_before_receipt(served: Served, mouth: Mouth):
    number = next(numbers)
    served.worker.child.process.send_signal(signal.SIGSTOP)
    try:
        late = await mouth.send([number], timeout_ms=50)
        await asyncio.sleep(0.2)
    finally:
        served.worker.child.process.send_signal(signal.SIGCONT)
    assert (await mouth.reply(late)).outcome is Outcome.EXPIRED
    assert number not in served.site.ran()


async def test_expired_while_queued_leaves_at_once(served: Served, mouth: Mouth):
    number = next(numbers)
    async with busy_model(mouth):
        late = await mouth.send([number], timeout_ms=SHORT)
        reply = await mouth.reply(late)  # while the model is still held
        assert reply.outcome is Outcome.EXPIRED
        assert reply.error is not None
        assert reply.error.code == "deadline_exceeded"
    await served.site.caught_up()
    assert number not in served.site.ran()


async def test_cancelled_while_queued(served: Served, mouth: Mouth, redis: Redis):
    number = next(numbers)
    async with busy_model(mouth):
        gone = await mouth.send([number])
        await taken(served, 1)
        await redis.set(deadline_key(gone), CANCEL, px=MINUTES)
    assert (await mouth.reply(gone)).outcome is Outcome.CANCELLED
    assert number not in served.site.ran()


async def test_shortened_while_queued(served: Served, mouth: Mouth, redis: Redis):
    number = next(numbers)
    async with busy_model(mouth):
        shortened = await mouth.send([number], timeout_ms=LONG)
        await taken(served, 1)
        await redis.set(deadline_key(shortened), deadline_value(await redis_ms(redis) - 1), px=MINUTES)
    assert (await mouth.reply(shortened)).outcome is Outcome.EXPIRED
    assert number not in served.site.ran()


async def test_extended_while_queued(served: Served, mouth: Mouth, redis: Redis):
    number = next(numbers)
    async with busy_model(mouth):
        extended = await mouth.send([number], timeout_ms=SHORT)
        later = await redis_ms(redis) + MINUTES // 2
        await redis.set(deadline_key(extended), deadline_value(later), px=MINUTES)
        control = await mouth.send([next(numbers)], timeout_ms=SHORT + 50)
        assert (await mouth.reply(control)).outcome is Outcome.EXPIRED  # so the other's own time is over too
        assert extended not in mouth.by_id
    assert (await mouth.reply(extended)).outcome is Outcome.OK
    assert number in served.site.ran()


async def test_extended_before_receipt(served: Served, mouth: Mouth, redis: Redis):
    later = await redis_ms(redis) + MINUTES // 2
    await redis.set(deadline_key("extended-early"), deadline_value(later), px=MINUTES)
    extended = await mouth.send([next(numbers)], request_id="extended-early", timeout_ms=0)
    assert (await mouth.reply(extended)).outcome is Outcome.OK


async def test_missing_key_is_not_expiry(served: Served, mouth: Mouth):
    found = await served.total("boundgen_redis_found_total")
    asked = await served.total("boundgen_redis_lookups_total")
    sent = await mouth.send([next(numbers)], timeout_ms=LONG)
    assert (await mouth.reply(sent)).outcome is Outcome.OK
    assert await served.total("boundgen_redis_lookups_total") == asked + 1
    assert await served.total("boundgen_redis_found_total") == found


async def test_redis_down_fails_open(served: Served, mouth: Mouth, redis: Redis):
    number = next(numbers)
    await redis.set(deadline_key("unseen"), CANCEL, px=MINUTES)
    open_before = await served.total("boundgen_redis_failed_open_total")
    served.proxy.set_mode("refuse")
    try:
        unseen = await mouth.send([next(numbers)], request_id="unseen", timeout_ms=LONG)
        assert (await mouth.reply(unseen)).outcome is Outcome.OK  # its cancellation could not be read
        late = await mouth.send([number], timeout_ms=0)
        assert (await mouth.reply(late)).outcome is Outcome.EXPIRED  # the message's own deadline counts
        assert await served.total("boundgen_redis_failed_open_total") > open_before
    finally:
        served.proxy.set_mode("pass")
    assert number not in served.site.ran()
    await served.redis_answers()
    gone = await mouth.send([number], request_id="unseen")
    await mouth.until(lambda: len(mouth.by_id[gone]) == 2)
    assert mouth.by_id[gone][1].reply.outcome is Outcome.CANCELLED


async def test_black_holed_redis_costs_its_cap_once_a_window(served: Served, mouth: Mouth):
    before = await served.total("boundgen_redis_timeouts_total")
    served.proxy.set_mode("swallow")
    started = time.monotonic()
    try:
        for _ in range(30):
            sent = await mouth.send([next(numbers)], timeout_ms=LONG)
            assert (await mouth.reply(sent)).outcome is Outcome.OK
        assert await served.total("boundgen_redis_available") == 0
        timeouts = await served.total("boundgen_redis_timeouts_total") - before
        windows = 1 + (time.monotonic() - started) * 1000 // RETRY_MS
        assert 1 <= timeouts <= windows
        number = next(numbers)
        late = await mouth.send([number], timeout_ms=0)
        assert (await mouth.reply(late)).outcome is Outcome.EXPIRED
    finally:
        served.proxy.set_mode("pass")
    assert number not in served.site.ran()
    await served.redis_answers()


@pytest.mark.parametrize("skew", [10 * MINUTES, -10 * MINUTES])
async def test_key_in_redis_is_exact_whatever_the_producers_clock(
    served: Served, mouth: Mouth, redis: Redis, skew: int
):
    alive, dead = next(numbers), next(numbers)
    now = await redis_ms(redis)
    await redis.set(deadline_key(f"alive{skew}"), deadline_value(now + MINUTES // 2), px=MINUTES)
    await redis.set(deadline_key(f"dead{skew}"), deadline_value(now - 1), px=MINUTES)
    for name, number in (("alive", alive), ("dead", dead)):
        own = int(time.time() * 1000) + skew + 1000
        await mouth.send([number], request_id=f"{name}{skew}", skew_ms=skew, deadline_ms=own)
    assert (await mouth.reply(f"alive{skew}")).outcome is Outcome.OK
    assert (await mouth.reply(f"dead{skew}")).outcome is Outcome.EXPIRED
    assert dead not in served.site.ran()


@pytest.mark.parametrize("skew", [10 * MINUTES, -10 * MINUTES])
@pytest.mark.parametrize("kind", ["timeout", "deadline"])
async def test_producers_budget_survives_its_wrong_clock(served: Served, mouth: Mouth, skew: int, kind: str):
    """Without a key: the partition had caught up, so a record that claims another time is not believed."""

    def within(budget_ms: int) -> dict[str, int]:
        if kind == "timeout":
            return {"timeout_ms": budget_ms}
        return {"deadline_ms": int(time.time() * 1000) + skew + budget_ms}

    await served.site.caught_up()
    number = next(numbers)
    alive = await mouth.send([next(numbers)], skew_ms=skew, **within(MINUTES))
    assert (await mouth.reply(alive)).outcome is Outcome.OK
    async with busy_model(mouth):
        late = await mouth.send([number], skew_ms=skew, **within(SHORT))
        assert (await mouth.reply(late)).outcome is Outcome.EXPIRED
    assert number not in served.site.ran()


async def test_expired_between_forming_and_launch_or_before_the_answer(sites: MakeSite):
    """The last two checks: a batch that waits for its lane, and an answer that came too late."""
    site = await sites(model={"requests": 1, "batches": 2}, settings=SETTINGS)
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            running = await mouth.send(["1 hold"], timeout_ms=3000)
            await site.model_holds(1)
            formed = await mouth.send(["2"], timeout_ms=3000)  # takes the second slot, waits for the lane
            control = await mouth.send(["3"], timeout_ms=3000)  # waits in the queue and leaves there
            assert (await mouth.reply(control)).outcome is Outcome.EXPIRED
            site.release.touch()
            for request_id in (running, formed):
                assert (await mouth.reply(request_id)).outcome is Outcome.EXPIRED
            await site.caught_up()
        assert worker.total("boundgen_model_requests_total") == 1
    assert site.ran() == [1]
