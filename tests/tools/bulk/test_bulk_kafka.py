"""`boundgen bulk --via kafka`: with a real worker, and with replies made here that say what workers may."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.client import Client
from schemas.codec import decode_request, encode_reply
from schemas.headers import parse_headers
from schemas.messages import ErrorCode, ErrorInfo, ModelInfo, Outcome, Reply, Request
from tools.bulk import silence
from worker_service import Site

ROWS = 400


def point(desk: Any, site: Site) -> None:
    """The desk's configuration, for the site's cluster and topics."""
    site.write_pipeline()
    settings = {
        "pipelines": [{"config": str(site.folder / "numbers.yaml"), "topic": site.topic}],
        "kafka": {"bootstrap_servers": site.bootstrap, "fetch_max_wait_ms": 100},
        "replies": {"topics": [site.replies]},
    }
    desk.path("worker.yaml").write_text(yaml.safe_dump(settings))


async def run(desk: Any, *more: str) -> Any:
    return await asyncio.to_thread(desk.bulk, "in.jsonl", "out.jsonl", "--via", "kafka", *more)


async def test_the_same_rows_as_through_the_engine(desk: Any, sites: Any) -> None:
    numbers = [*range(ROWS), "seven", *range(1000, 1010)]
    desk.write_rows("in.jsonl", numbers)
    assert desk.bulk("in.jsonl", "engine.jsonl").status == 1
    site = await sites(partitions=2)
    point(desk, site)
    with site.worker():
        outcome = await run(desk, "--part-rows", "64")
    assert (outcome.status, outcome.summary["ok"], outcome.summary["failed"]) == (1, ROWS + 10, 1)
    assert desk.read("out.jsonl") == desk.read("engine.jsonl")


async def test_online_requests_go_before_a_backlog_of_bulk(desk: Any, sites: Any) -> None:
    desk.write_rows("in.jsonl", ["0 hold", *range(1, ROWS)])
    site = await sites(redis_url=None)
    point(desk, site)
    with site.worker() as worker:
        bulk = asyncio.create_task(run(desk, "--in-flight", "64"))
        async with Client(site.bootstrap, reply_topic=site.replies, topics={"numbers": site.topic}) as client:
            await site.model_holds(0)
            held = len(site.ran())
            handles = [await client.submit("numbers", [str(10_000 + n)], timeout_ms=60_000) for n in range(5)]
            # Bulk requests fill the window behind the held batch; the online ones are read all the same.
            await until(lambda: worker.total("boundgen_queue_requests") >= len(handles) + 2)
            site.release.touch()
            replies = [await handle.reply() for handle in handles]
            assert {reply.outcome for reply in replies} == {Outcome.OK}
        outcome = await bulk
    assert (outcome.status, outcome.summary["ok"]) == (0, ROWS)
    ran = site.ran()
    places = [ran.index(10_000 + n) for n in range(5)]
    assert max(places) < held + 5 + 2 * 16, "the online requests ran behind the batches under way alone"


async def test_busy_workers_slow_it_down_and_nothing_is_lost(desk: Any, sites: Any) -> None:
    desk.write_rows("in.jsonl", range(ROWS))
    site = await sites(redis_url=None)
    point(desk, site)
    seen: Counter[str] = Counter()

    def answer(request: Request) -> Reply | None:
        seen[request.id] += 1
        if seen.total() < 10:
            codes = [ErrorCode.OVERLOADED, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.SHUTTING_DOWN]
            code = codes[seen.total() % 3]
            return Reply(id=request.id, outcome=code.outcome, error=ErrorInfo(code=code, message="busy"))
        return ok(request)

    async with responder(site, answer):
        outcome = await run(desk)
    assert (outcome.status, outcome.summary["ok"], outcome.summary["models"]) == (0, ROWS, ["digest"])
    numbers = [row["response"]["body"]["number"] for row in desk.read("out.jsonl")]
    assert numbers == list(range(ROWS))
    assert len(seen) == ROWS // 4  # what was refused came again under its own id
    assert max(seen.values()) > 1


async def test_a_lost_reply_is_asked_for_again_and_a_redo_is_recognisable(desk: Any, sites: Any) -> None:
    desk.write_rows("in.jsonl", range(40))
    site = await sites(redis_url=None)
    point(desk, site)
    seen: Counter[str] = Counter()

    def answer(request: Request) -> Reply | None:
        seen[request.id] += 1
        assert request.priority == 9
        return None if len(seen) % 5 == 0 and seen[request.id] == 1 else ok(request)

    async with responder(site, answer):
        first = await run(desk, "--timeout-ms", "100")
        before = dict(seen)
        second = await run(desk, "--timeout-ms", "100", "--overwrite")
    assert (first.status, second.status) == (0, 0), first.told + second.told
    assert set(seen) == set(before)  # the same rows of the same run have the same ids
    assert max(before.values()) == 2


async def test_a_request_at_fault_is_taken_apart(desk: Any, sites: Any) -> None:
    """Too large for any reason, without a hint; or failed, with nobody saying which sample did it."""
    desk.write_rows("in.jsonl", range(40))
    site = await sites(redis_url=None)
    point(desk, site)

    def answer(request: Request) -> Reply | None:
        numbers = [int(sample.text or "") for sample in request.samples]
        for number, code in ((13, ErrorCode.TOO_LARGE), (26, ErrorCode.INTERNAL)):
            if number in numbers:
                return Reply(
                    id=request.id, outcome=code.outcome, error=ErrorInfo(code=code, message=f"{number}")
                )
        return ok(request)

    async with responder(site, answer):
        outcome = await run(desk)
    assert outcome.summary["errors"] == {"internal": 1, "too_large": 1}
    failed = [row["row"] for row in desk.read("out.jsonl") if row["error"] is not None]
    assert failed == [13, 26]


async def test_that_nobody_answers_is_told_until_somebody_does(
    desk: Any, sites: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(silence, "FIRST_S", 1.0)
    monkeypatch.setattr(silence, "tell", said.append)
    desk.write_rows("in.jsonl", range(40))
    site = await sites(redis_url=None)
    point(desk, site)
    bulk = asyncio.create_task(run(desk))
    await until(lambda: bool(said))
    async with responder(site, ok):
        outcome = await bulk
    assert (outcome.status, outcome.summary["ok"]) == (0, 40)
    (text,) = said
    assert re.match(
        r"no answer for \d+ s: is a worker running\? group boundgen\.numbers is [1-4] records", text
    )
    assert text.endswith(f"behind on topic {site.topic}; still waiting")


async def test_a_topic_that_does_not_exist_is_said_at_once(desk: Any, sites: Any) -> None:
    desk.write_rows("in.jsonl", range(4))
    site = await sites(redis_url=None)
    point(desk, site)
    text = desk.path("worker.yaml").read_text().replace(site.topic, f"{site.topic}.other")
    desk.path("worker.yaml").write_text(text)
    outcome = await run(desk)
    assert outcome.status == 2
    assert f"topic '{site.topic}.other' does not exist" in outcome.told


def ok(request: Request) -> Reply:
    rows = tuple({"id": place, "number": int(each.text or "")} for place, each in enumerate(request.samples))
    return Reply(id=request.id, outcome=Outcome.OK, results=rows, model=ModelInfo(name="x", digest="digest"))


@contextlib.asynccontextmanager
async def responder(site: Site, answer: Callable[[Request], Reply | None]) -> AsyncIterator[None]:
    """Answers every request of the site's topic as `answer` says; None is silence."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=site.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50
    )
    producer = AIOKafkaProducer(bootstrap_servers=site.bootstrap)
    await consumer.start()
    await producer.start()
    consumer.assign([TopicPartition(site.topic, 0)])

    async def serve() -> None:
        async for record in consumer:
            reply = answer(decode_request(record.value))
            if reply is not None:
                headers = list(parse_headers(record.headers).echo)
                await producer.send_and_wait(site.replies, encode_reply(reply), headers=headers)

    task = asyncio.create_task(serve())
    try:
        yield
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.stop()
        await producer.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)
