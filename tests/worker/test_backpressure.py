"""A pipeline that is full stops reading its own topic and nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.messages import Outcome
from tools.processes import free_ports
from tools.worker_process import run_worker
from worker_service import SERVICES, MakeSite, Mouth

WINDOW = 8


async def test_a_full_pipeline_holds_up_no_other(
    sites: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SERVICES))
    slow = await sites(pipeline="slow", model={"requests": 1})
    fast_folder = tmp_path / "fast"
    fast_folder.mkdir()
    fast = await sites(pipeline="fast")
    fast = type(fast)(**{**fast.__dict__, "folder": fast_folder})
    settings = {
        "name": "worker",
        "pipelines": [
            {
                "config": str(site.write_pipeline()),
                "topic": site.topic,
                "group": site.group,
                "queue": {"max_requests": WINDOW} if site is slow else None,
            }
            for site in (slow, fast)
        ],
        "kafka": {"bootstrap_servers": slow.bootstrap},
        "replies": {"topics": [slow.replies, fast.replies]},
        "redis": {"url": None},
        "http": {"port": free_ports(1)[0]},
    }
    with run_worker(settings, tmp_path) as worker:
        async with Mouth(slow) as to_slow, Mouth(fast) as to_fast:
            held = [await to_slow.send(["1 hold"])] + [await to_slow.send([n]) for n in range(60)]
            quick = [await to_fast.send([number]) for number in range(60)]
            for request_id in quick:
                assert (await to_fast.reply(request_id)).outcome is Outcome.OK
            await fast.caught_up()
            inflight = worker.total("boundgen_inflight_requests", pipeline="slow")
            assert inflight == worker.total("boundgen_records_total", pipeline="slow") == WINDOW
            assert to_slow.answers == []
            slow.release.touch()
            for request_id in held:
                assert (await to_slow.reply(request_id)).outcome is Outcome.OK
            await slow.caught_up()
            assert len(to_slow.answers) == len(held)


async def test_a_bound_in_bytes_and_one_on_what_is_uncommitted(sites: MakeSite) -> None:
    site = await sites(
        model={"requests": 1},
        settings={"queue": {"max_bytes": 1024, "max_uncommitted": 3}, "kafka": {"fetch_max_bytes": 1024}},
    )
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            ids = [await mouth.send(["1 hold"])] + [await mouth.send([number]) for number in range(40)]
            await asyncio.sleep(2)
            assert worker.total("boundgen_records_total") < len(ids)
            site.release.touch()
            for request_id in ids:
                assert (await mouth.reply(request_id)).outcome is Outcome.OK
            await site.caught_up()


async def test_requests_without_hope_are_refused_while_others_wait(sites: MakeSite) -> None:
    site = await sites(model={"requests": 1, "sleep_ms": 50}, settings={"queue": {"overload_factor": 1.0}})
    with site.worker():
        async with Mouth(site) as mouth:
            for number in range(5):
                await mouth.reply(await mouth.send([number]))
            crowd = [await mouth.send([number], timeout_ms=60_000) for number in range(20)]
            hopeless = await mouth.send([99], timeout_ms=200)
            reply = await mouth.reply(hopeless)
            assert reply.outcome is Outcome.REJECTED
            assert reply.error is not None
            assert reply.error.code == "overloaded"
            urgent = await mouth.send([100], timeout_ms=5000, priority=0)
            for request_id in [*crowd, urgent]:
                assert (await mouth.reply(request_id)).outcome is Outcome.OK
    assert 99 not in site.ran()
