"""The deadline store against a real Redis, and against one that is down, silent, slow or wrong."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from schemas.deadlines import CANCEL, CANCELLED, deadline_key, deadline_value
from tcp_proxy import TcpProxy
from worker.redis_deadlines import DeadlineStore
from worker.redis_line import LineOptions

# A window wide enough that no test reaches its end by accident, and a cap that a busy machine keeps.
CAP_MS = 500.0
HOUR_MS = 3_600_000.0


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., DeadlineStore]]:
    """Make stores; they are closed at the end."""
    stores: list[DeadlineStore] = []

    def make(url: str | None, **changes: float) -> DeadlineStore:
        options = {"timeout_ms": CAP_MS, "retry_ms": HOUR_MS, "refresh_ms": HOUR_MS, **changes}
        store = DeadlineStore(None if url is None else LineOptions(url, **options))
        stores.append(store)
        return store

    yield make
    for store in stores:
        async with asyncio.timeout(10):
            await store.close()


def behind(proxy: TcpProxy) -> str:
    return f"redis://{proxy.address}/0"


def some_ids(count: int) -> list[str]:
    run = uuid.uuid4().hex
    return [f"{run}-{number}" for number in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def redis_ms(redis: Redis) -> int:
    seconds, microseconds = await redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


async def test_finds_deadlines_and_cancellations_and_leaves_out_the_rest(redis, redis_url, opened):
    moved, cancelled, missing, garbage, seconds, negative = ids = some_ids(6)
    now = await redis_ms(redis)
    await redis.set(deadline_key(moved), deadline_value(now + 30_000), px=60_000)
    await redis.set(deadline_key(cancelled), CANCEL, px=60_000)
    await redis.set(deadline_key(garbage), b"\xffsoon", px=60_000)
    await redis.set(deadline_key(seconds), b"%d" % (now // 1000), px=60_000)
    await redis.set(deadline_key(negative), b"-5", px=60_000)
    store = opened(redis_url)
    await store.start()
    assert store.available
    found = await store.lookup([*ids, moved])
    assert found.keys() == {moved, cancelled}
    assert missing not in found
    assert found[cancelled] is CANCELLED
    remaining = found[moved] - store.clock.now_ms()
    assert 0 < remaining <= 30_000
    assert store.counters.garbage == 3
    assert store.counters.failed_open == 0


async def test_value_that_is_no_string_is_no_key(redis, redis_url, opened):
    (listed,) = some_ids(1)
    await redis.rpush(deadline_key(listed), "1")
    await redis.pexpire(deadline_key(listed), 60_000)
    store = opened(redis_url)
    await store.start()
    assert await store.lookup([listed]) == {}


async def test_clock_is_that_of_redis(redis, redis_url, opened):
    store = opened(redis_url)
    await store.start()
    before = await redis_ms(redis)
    here = store.clock.now_ms() + store.clock.offset_ms
    after = await redis_ms(redis)
    assert before - 2 <= here <= after + 2  # ms: the quickest of three round trips on one machine


async def test_without_redis_nothing_is_known_and_nothing_counted(opened):
    store = opened(None)
    await store.start()
    assert not store.available
    assert await store.lookup(["a"]) == {}
    assert store.counters.failed_open == 0


async def test_redis_down_at_the_start_fails_open_and_is_found_later(redis, redis_proxy, opened):
    redis_proxy.set_mode("refuse")
    store = opened(behind(redis_proxy), retry_ms=20)
    await store.start()
    assert not store.available
    (known,) = some_ids(1)
    await redis.set(deadline_key(known), CANCEL, px=60_000)
    assert await store.lookup([known]) == {}
    assert store.counters.failed_open == 1
    redis_proxy.set_mode("pass")
    await until(lambda: store.available)
    assert await store.lookup([known]) == {known: CANCELLED}


async def test_redis_going_down_fails_open_without_a_timeout(redis_proxy, opened):
    store = opened(behind(redis_proxy))
    await store.start()
    redis_proxy.set_mode("refuse")
    assert await store.lookup(["a", "b"]) == {}
    assert await store.lookup(["c"]) == {}
    assert store.counters.failed_open == 3
    assert store.line_counters.timeouts == 0
    assert store.line_counters.errors == 1
    assert not store.available


async def test_black_hole_costs_one_cap_in_a_breaker_window(redis_proxy, opened):
    store = opened(behind(redis_proxy))
    await store.start()
    redis_proxy.set_mode("swallow")
    for number in range(200):
        assert await store.lookup([f"{number}"]) == {}
    assert store.line_counters.timeouts == 1
    assert store.line_counters.questions == 1  # the other 199 were not even sent
    assert store.counters.failed_open == 200


async def test_lookups_at_once_share_the_one_cap(redis_proxy, opened):
    store = opened(behind(redis_proxy))
    await store.start()
    redis_proxy.set_mode("swallow")
    assert await asyncio.gather(*(store.lookup([f"{number}"]) for number in range(50))) == [{}] * 50
    assert store.line_counters.questions == 1
    assert store.counters.failed_open == 50


async def test_door_opens_again_only_for_a_redis_that_answers(redis, redis_proxy, opened):
    (known,) = some_ids(1)
    await redis.set(deadline_key(known), CANCEL, px=60_000)
    store = opened(behind(redis_proxy), retry_ms=20, connect_timeout_ms=50)
    await store.start()
    redis_proxy.set_mode("swallow")
    assert await store.lookup([known]) == {}
    tried = redis_proxy.accepted
    await until(lambda: redis_proxy.accepted >= tried + 3)  # probes, while the door stays closed
    assert not store.available
    assert store.line_counters.questions == 1
    redis_proxy.set_mode("pass")
    await until(lambda: store.available)
    assert await store.lookup([known]) == {known: CANCELLED}


async def test_redis_slower_than_the_cap_does_not_open_the_door(redis_proxy, opened):
    redis_proxy.set_mode("delay", 0.3)
    store = opened(behind(redis_proxy), timeout_ms=20, connect_timeout_ms=5000)
    await store.start()
    assert not store.available


async def test_late_event_loop_is_not_taken_for_a_silent_redis(redis, redis_url, opened):
    (known,) = some_ids(1)
    await redis.set(deadline_key(known), CANCEL, px=60_000)
    store = opened(redis_url, timeout_ms=20)
    await store.start()
    lookup = asyncio.create_task(store.lookup([known]))
    await asyncio.sleep(0)  # the lookup starts its exchange
    await asyncio.sleep(0)  # the exchange sends
    time.sleep(0.2)  # noqa: ASYNC251 - a loop that is late is what is tested
    assert await lookup == {known: CANCELLED}
    assert store.line_counters.timeouts == 0


async def test_cancelled_lookup_never_hands_its_answer_to_the_next(redis, redis_proxy, opened):
    """The failure of redis-py 2624 and 2665: the next caller read the answer to a cancelled command."""
    ids = some_ids(40)
    for request_id in ids[::2]:
        await redis.set(deadline_key(request_id), CANCEL, px=60_000)
    store = opened(behind(redis_proxy), timeout_ms=1000)
    await store.start()
    redis_proxy.set_mode("delay", 0.005)  # the answer is under way when its reader is cancelled
    for number, (cancelled, missing) in enumerate(zip(ids[::2], ids[1::2], strict=True)):
        lookup = asyncio.create_task(store.lookup([cancelled]))
        await asyncio.sleep(0.0007 * number)
        lookup.cancel()
        await asyncio.gather(lookup, return_exceptions=True)
        assert await store.lookup([missing]) == {}
        await until(lambda: store.available)  # a cancelled caller is no fault of Redis: at once
        assert await store.lookup([missing, cancelled]) == {cancelled: CANCELLED}


async def test_cancelled_lookup_that_waits_its_turn_leaves_the_other_alone(redis, redis_proxy, opened):
    (known,) = some_ids(1)
    await redis.set(deadline_key(known), CANCEL, px=60_000)
    store = opened(behind(redis_proxy), timeout_ms=1000)
    await store.start()
    redis_proxy.set_mode("delay", 0.02)
    first = asyncio.create_task(store.lookup([known]))
    await asyncio.sleep(0.001)
    second = asyncio.create_task(store.lookup(["other"]))
    await asyncio.sleep(0.001)
    second.cancel()
    assert await first == {known: CANCELLED}
    assert store.line_counters.connects == 1


async def test_something_else_on_the_port_fails_open(opened):
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        store = opened(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
        await store.start()
        assert not store.available
        assert await store.lookup(["a"]) == {}
        assert store.line_counters.errors == 1


async def test_clock_is_kept_while_nobody_asks(redis_url, opened):
    store = opened(redis_url, refresh_ms=20)
    await store.start()
    await until(lambda: store.line_counters.questions >= 3)
    assert store.counters.ids == 0
    assert store.available


async def test_idle_line_notices_that_redis_went_away_and_came_back(redis_proxy, opened):
    store = opened(behind(redis_proxy), refresh_ms=20, retry_ms=20)
    await store.start()
    redis_proxy.set_mode("refuse")
    await until(lambda: not store.available)
    redis_proxy.set_mode("pass")
    await until(lambda: store.available)
