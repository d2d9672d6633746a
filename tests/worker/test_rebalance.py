"""Partitions move while work is in flight: what can finish is committed, the rest comes again, marked."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from schemas.messages import Outcome
from tools.worker_process import WorkerProcess
from worker_service import MakeSite, Mouth


async def running(worker: WorkerProcess, count: int) -> None:
    """Return when the worker has handed so many batches to the engine or has them in it."""
    async with asyncio.timeout(30):
        while (
            await asyncio.to_thread(worker.total, "boundgen_inflight_requests")
            - await asyncio.to_thread(worker.total, "boundgen_queue_requests")
            < count
        ):
            await asyncio.sleep(0.05)


async def test_work_that_finishes_in_time_is_answered_once(sites: MakeSite) -> None:
    site = await sites(partitions=2, model={"requests": 1}, settings={"kafka": {"revoke_drain_ms": 10_000}})
    with ExitStack() as workers:
        first = workers.enter_context(site.worker("first"))
        async with Mouth(site) as mouth:
            ids = [await mouth.send(["1 hold"], partition=0)]
            ids += [await mouth.send([number], partition=number % 2) for number in range(2, 20)]
            await running(first, 1)
            joining = asyncio.create_task(asyncio.to_thread(workers.enter_context, site.worker("second")))
            await asyncio.sleep(1)
            site.release.touch()
            await joining
            for request_id in ids:
                assert (await mouth.reply(request_id)).outcome is Outcome.OK
            await site.caught_up()
            assert mouth.by_id[ids[0]][0].reply.worker == "first"
            assert len(mouth.answers) == len(ids)
            assert await asyncio.to_thread(first.total, "boundgen_assigned_partitions") == 1
            released = await asyncio.to_thread(first.total, "boundgen_released_total")
            taken = await asyncio.to_thread(first.total, "boundgen_records_total")
            settled = await asyncio.to_thread(first.total, "boundgen_requests_total")
            assert taken == settled + released


async def test_work_that_does_not_is_answered_again_and_marked(sites: MakeSite, apache_kafka: str) -> None:
    site = await sites(partitions=1, model={"requests": 1}, settings={"kafka": {"revoke_drain_ms": 200}})
    with ExitStack() as workers:
        first = workers.enter_context(site.worker("first"))
        async with Mouth(site) as mouth:
            held = await mouth.send(["1 hold"])
            after = await mouth.send([2])
            await running(first, 1)
            await asyncio.sleep(0.3)  # at least one commit says how far records were taken
            await asyncio.to_thread(workers.enter_context, site.worker("second"))
            site.release.touch()
            await mouth.until(lambda: len(mouth.by_id[held]) == 2 and after in mouth.by_id)
            await site.caught_up()
    assert sorted(answer.reply.attempt for answer in mouth.by_id[held]) == [1, 2]
    assert [answer.reply.attempt for answer in mouth.by_id[after]] == [1]  # given back untouched
    assert {answer.reply.outcome for answer in mouth.answers} == {Outcome.OK}


async def test_a_group_that_comes_and_goes_loses_nothing(sites: MakeSite) -> None:
    site = await sites(partitions=4, model={"requests": 4, "sleep_ms": 2})
    async with Mouth(site) as mouth:
        ids: list[str] = []

        async def produce() -> None:
            for number in range(600):
                ids.append(await mouth.send([number], partition=number % 4))
                await asyncio.sleep(0.005)

        with site.worker("steady"):
            producing = asyncio.create_task(produce())
            for name in ("guest-1", "guest-2"):
                with ExitStack() as guest:
                    await asyncio.to_thread(guest.enter_context, site.worker(name))
                    await asyncio.to_thread(guest.close)
            await producing
            await mouth.until(lambda: all(request_id in mouth.by_id for request_id in ids))
            await site.caught_up()
        doubles = [answers for answers in mouth.by_id.values() if len(answers) > 1]
        assert all(answer.reply.outcome is Outcome.OK for answer in mouth.answers)
        assert doubles == []  # every rebalance was an orderly one
