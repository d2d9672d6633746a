"""SIGTERM to a real worker: what was taken is answered or left to the next owner, never lost, never late."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from schemas.messages import Outcome
from tools.worker_process import WorkerProcess
from worker_service import MakeSite, Mouth


async def ended(worker: WorkerProcess) -> int:
    return await asyncio.to_thread(worker.child.process.wait, 30)


async def taken(worker: WorkerProcess, count: int) -> None:
    """Return when the worker has read so many records."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(worker.total, "boundgen_records_total") < count:
            await asyncio.sleep(0.05)


async def test_what_was_taken_is_finished_and_committed(sites: MakeSite) -> None:
    site = await sites(model={"requests": 1})
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            ids = [await mouth.send(["1 hold"])] + [await mouth.send([number]) for number in range(2, 7)]
            await taken(worker, len(ids))
            worker.child.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            assert worker.child.process.poll() is None
            site.release.touch()
            assert await ended(worker) == 0
            for request_id in ids:
                assert (await mouth.reply(request_id)).outcome is Outcome.OK
            assert len(mouth.answers) == len(ids)
    assert await site.lag() == 0


async def test_what_does_not_finish_in_time_goes_to_the_next_owner(
    sites: MakeSite, apache_kafka: str
) -> None:
    site = await sites(model={"requests": 1}, settings={"shutdown": {"grace_ms": 500, "close_ms": 1000}})
    async with Mouth(site) as mouth:
        with site.worker("first") as worker:
            ids = [await mouth.send(["1 hold"])] + [await mouth.send([number]) for number in range(2, 7)]
            await taken(worker, len(ids))
            await asyncio.sleep(0.2)  # at least one commit
            started_s = time.monotonic()
            worker.child.process.send_signal(signal.SIGTERM)
            assert await ended(worker) == 0
            assert time.monotonic() - started_s < 10
            assert mouth.answers == []
        assert await site.lag() == len(ids)
        site.release.touch()
        with site.worker("second"):
            replies = [await mouth.reply(request_id) for request_id in ids]
            await site.caught_up()
    assert [reply.outcome for reply in replies] == [Outcome.OK] * len(ids)
    assert {reply.worker for reply in replies} == {"second"}
    assert [reply.attempt for reply in replies] == [2, 1, 1, 1, 1, 1]  # only one had reached the model


async def test_what_expires_while_ending_is_answered(sites: MakeSite) -> None:
    site = await sites(model={"requests": 1})
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            await mouth.send(["1 hold"])
            late = await mouth.send([2], timeout_ms=1000)
            await taken(worker, 2)
            worker.child.process.send_signal(signal.SIGTERM)
            assert (await mouth.reply(late)).outcome is Outcome.EXPIRED
            site.release.touch()
            assert await ended(worker) == 0
    assert await site.lag() == 0
    assert site.ran() == [1]


async def test_a_second_signal_ends_at_once(sites: MakeSite) -> None:
    site = await sites(model={"requests": 1})
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            await mouth.send(["1 hold"])
            await taken(worker, 1)
            worker.child.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(1.5)
            worker.child.process.send_signal(signal.SIGTERM)
            assert await ended(worker) == 128 + signal.SIGTERM
            assert mouth.answers == []


async def test_missing_topics_are_said_and_end_the_start(sites: MakeSite, tmp_path: Path) -> None:
    site = await sites(settings={"kafka": {"start_timeout_ms": 3000}})
    gone = tmp_path / "gone"
    gone.mkdir()
    nowhere = type(site)(**{**site.__dict__, "topic": "test.not.there", "folder": gone})
    with pytest.raises(Exception, match=r"topics \['test.not.there'\] do not exist at"), nowhere.worker():
        pass
