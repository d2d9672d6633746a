"""A request that ends every worker that touches it: found out, set aside, and the others are answered."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.deadletter import parse_origin
from schemas.messages import Outcome
from worker_service import SERVICES, MakeSite, Mouth, Site

NODE = """
import os
from fixed_cost import FixedCost
class Bomb(FixedCost):
    def run(self, requests):
        if any(number == 13 for (tokens,) in requests for number, *_ in tokens.ids):
            os._exit(99)
        return super().run(requests)
"""


async def run_until_it_ends(site: Site, name: str, mouth: Mouth, ids: list[str]) -> bool:
    """Run a worker as a supervisor would; True when every request was answered while it ran."""

    def answered() -> bool:
        return all(request_id.encode() in mouth.by_correlation for request_id in ids)

    context = site.worker(name)
    try:
        worker = await asyncio.to_thread(context.__enter__)
    except Exception as error:  # noqa: BLE001 - it may end before it is ready
        assert "status 99" in str(error)  # noqa: PT017 - one of two good ends
        return False
    try:
        async with asyncio.timeout(60):
            while worker.child.process.poll() is None and not answered():
                await asyncio.sleep(0.05)
        return answered()
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_request_that_ends_workers_is_set_aside(
    sites: MakeSite, apache_kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bomb.py").write_text(NODE)
    site = await sites(
        partitions=1,
        model={"kind": "bomb:Bomb", "requests": 4},
        settings={"kafka": {"session_timeout_ms": 6000}, "queue": {"max_attempts": 3}},
    )
    monkeypatch.setenv("PYTHONPATH", f"{SERVICES}{os.pathsep}{tmp_path}")
    async with Mouth(site) as mouth:
        ids = [await mouth.send([number]) for number in range(5, 25)]
        bomb = ids[13 - 5]
        starts = 0
        while not await run_until_it_ends(site, f"worker-{starts}", mouth, ids):
            starts += 1
            assert starts < 10
        (set_aside,) = mouth.by_correlation[bomb.encode()]
        assert set_aside.reply.outcome is Outcome.FAILED
        assert set_aside.reply.error is not None
        assert set_aside.reply.error.message == "3 workers ended while they had this record"
        others = [each.reply.outcome for each in mouth.answers if each is not set_aside]
        assert set(others) == {Outcome.OK}
        assert starts == 3
        await site.caught_up()
    consumer = AIOKafkaConsumer(bootstrap_servers=site.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(site.dead_letters, 0)])
        origin = parse_origin((await consumer.getone()).headers)
    finally:
        await consumer.stop()
    assert origin is not None
    assert (origin.offset, origin.exception_class) == (13 - 5, "boundgen.AttemptsExhausted")
