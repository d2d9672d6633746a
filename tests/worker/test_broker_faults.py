"""Kafka on a bad day: away, silent, a topic gone. Nothing is lost, nothing loops, and a limp process ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from aiokafka.admin import AIOKafkaAdminClient

from schemas.messages import Outcome
from tcp_proxy import TcpProxy
from tools.broker_state import count_records
from worker_service import MakeSite, Mouth


async def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


async def test_a_broker_that_was_away_is_used_again(
    sites: MakeSite, kafka: str, kafka_proxy: TcpProxy
) -> None:
    site = await sites(model={"requests": 1, "sleep_ms": 5})
    with replace(site, bootstrap=kafka_proxy.address).worker() as worker:
        async with Mouth(site) as mouth:
            ids = [await mouth.send([number]) for number in range(100)]
            await mouth.until(lambda: len(mouth.by_id) >= 10)
            kafka_proxy.set_mode("refuse")
            ids += [await mouth.send([number]) for number in range(100, 200)]
            await asyncio.sleep(4)
            kafka_proxy.set_mode("pass")
            await mouth.until(lambda: all(request_id in mouth.by_id for request_id in ids))
            await site.caught_up()
            assert {answer.reply.outcome for answer in mouth.answers} == {Outcome.OK}
            assert worker.child.process.poll() is None
            taken = worker.total("boundgen_records_total")
            settled = worker.total("boundgen_requests_total")
            assert taken == settled + worker.total("boundgen_released_total")


async def test_a_silent_broker_ends_the_process_and_costs_no_record(
    sites: MakeSite, kafka: str, kafka_proxy: TcpProxy
) -> None:
    site = await sites(
        settings={
            "replies": {"timeout_ms": 500, "give_up_ms": 2000},
            "shutdown": {"grace_ms": 500, "close_ms": 500},
            "kafka": {"session_timeout_ms": 6000},
        }
    )
    async with Mouth(site) as mouth:
        with replace(site, bootstrap=kafka_proxy.address).worker("doomed") as worker:
            held = await mouth.send(["1 hold"])
            async with asyncio.timeout(30):
                while not site.ran():
                    await asyncio.sleep(0.05)
            kafka_proxy.set_mode("swallow")
            site.release.touch()
            assert await asyncio.to_thread(worker.child.process.wait, 30) == 70
            assert mouth.answers == []
        kafka_proxy.set_mode("pass")
        assert await site.lag() == 1
        with site.worker("heir"):
            assert (await mouth.reply(held)).worker == "heir"
            await site.caught_up()


async def test_an_end_while_the_broker_is_away_is_an_orderly_one(
    sites: MakeSite, kafka: str, kafka_proxy: TcpProxy
) -> None:
    """aiokafka's own stop breaks off; ours says what follows, and by 1 that the last commit failed."""
    site = await sites(settings={"shutdown": {"grace_ms": 500, "close_ms": 2000}})
    with replace(site, bootstrap=kafka_proxy.address).worker() as worker:
        kafka_proxy.set_mode("refuse")
        await asyncio.sleep(6)
        worker.child.process.terminate()
        status = await asyncio.to_thread(worker.child.process.wait, 30)
        log = worker.child.log.read_text()
    kafka_proxy.set_mode("pass")
    assert status in (0, 1), log[-3000:]
    assert "Traceback" not in log
    assert '"drained"' in log
    assert '"ended"' in log
    assert log.count('"logger": "aiokafka') < 60  # told, not shouted


async def test_an_idle_worker_says_that_its_broker_is_away(sites: MakeSite, kafka_proxy: TcpProxy) -> None:
    """Nothing is sent or committed: only asking tells. Alive all along, ready again by itself."""
    kafka = {"rebalance_timeout_ms": 5000, "request_timeout_ms": 6000}  # also how soon silence is given up
    site = await sites(settings={"replies": {"timeout_ms": 1000}, "kafka": kafka})
    silent = f"no broker of {kafka_proxy.address} answers"
    with replace(site, bootstrap=kafka_proxy.address).worker() as worker:
        for away in ("refuse", "swallow"):
            kafka_proxy.set_mode(away)
            async with asyncio.timeout(30):
                while silent not in str(await asyncio.to_thread(worker.ask, "/ready")):
                    await asyncio.sleep(0.1)
            assert not worker.is_ready()
            assert await asyncio.to_thread(worker.ask, "/health") == (200, [])
            kafka_proxy.set_mode("pass")
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(worker.is_ready):
                    await asyncio.sleep(0.1)
        async with Mouth(site) as mouth:
            assert (await mouth.reply(await mouth.send([1]))).outcome is Outcome.OK


async def test_an_answer_held_up_beyond_its_deadline_is_told_as_expired(
    sites: MakeSite, kafka_proxy: TcpProxy
) -> None:
    site = await sites(redis_url=None, settings={"replies": {"timeout_ms": 500}})
    with replace(site, bootstrap=kafka_proxy.address).worker() as worker:
        async with Mouth(site) as mouth:
            sent_s = time.monotonic()
            late = await mouth.send(["1 hold"], timeout_ms=4000)
            patient = await mouth.send(["2 hold"], timeout_ms=60_000)
            await site.model_holds(1)
            kafka_proxy.set_mode("refuse")
            site.release.touch()
            await asyncio.sleep(sent_s + 4.5 - time.monotonic())
            assert not mouth.answers
            kafka_proxy.set_mode("pass")
            reply = await mouth.reply(late)
            assert reply.outcome is Outcome.EXPIRED
            assert "before its reply could be published" in str(reply.error)
            assert (await mouth.reply(patient)).outcome is Outcome.OK
        assert worker.total("boundgen_model_requests_total", outcome="expired") == 1


async def test_replies_to_a_topic_that_went_away_become_dead_letters(
    apache_kafka: str, sites: MakeSite
) -> None:  # the embedded broker makes a topic again that is written to
    site = await sites(settings={"replies": {"timeout_ms": 1000}})
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            await mouth.reply(await mouth.send([1]))
            await delete_topic(site.bootstrap, site.replies)
            for number in range(2, 12):
                await mouth.send([number])
            await site.caught_up()
        assert worker.total("boundgen_dead_letters_total", result="written") == 10
        assert worker.total("boundgen_requests_total", outcome="failed") == 10
        assert worker.is_ready()
    options = {"bootstrap_servers": site.bootstrap}
    assert await count_records(options, [site.dead_letters], 1) == 10


async def test_a_dead_letter_without_a_topic_is_lost_and_loops_on_nothing(sites: MakeSite) -> None:
    site = await sites()
    await delete_topic(site.bootstrap, site.dead_letters)
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            for _ in range(5):
                await mouth.send_raw(b"\xc1", correlation=b"bad")
            good = await mouth.send([1])
            assert (await mouth.reply(good)).outcome is Outcome.OK
            await site.caught_up()
            assert len(mouth.by_correlation[b"bad"]) == 5
        assert worker.total("boundgen_dead_letters_total", result="lost") == 5
        assert worker.total("boundgen_requests_total", outcome="invalid") == 5
