"""The reply consumer through what happens to consumers: no reply may be lost."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import KafkaError

from schemas.client import Client
from schemas.messages import Outcome


async def scores(client: Client, count: int) -> None:
    replies = await asyncio.gather(*(client.score("p", [f"text {number}"]) for number in range(count)))
    assert [reply.results[0]["text"] for reply in replies] == [f"text {number}" for number in range(count)]


@pytest.fixture(params=[None, "clients"])
def group(request):
    """Both ways to read: partitions assigned by hand, and a group of the client's own."""
    return request.param


async def test_only_what_comes_after_the_start_is_read(kafka, topics, responder, patient, group):
    requests, replies = await topics(1, "requests"), await topics(3, "replies")
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for number in range(30):
            await producer.send_and_wait(
                replies, b"old", headers=[("correlation_id", b"old")], partition=number % 3
            )
    async with (
        responder(requests),
        Client(
            kafka, reply_topic=replies, topics={"p": requests}, reply_group=group, settings=patient
        ) as client,
    ):
        await scores(client, 10)
        assert client.ignored_replies == 0


async def test_added_partitions_are_read_from_their_beginning(
    apache_kafka, topics, responder, patient, group
):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    async with (
        responder(requests) as worker,
        Client(
            apache_kafka, reply_topic=replies, topics={"p": requests}, reply_group=group, settings=patient
        ) as client,
    ):
        await scores(client, 3)
        admin = AIOKafkaAdminClient(bootstrap_servers=apache_kafka)
        await admin.start()
        await admin.create_partitions({replies: NewPartitions(4)})
        await admin.close()
        await worker.wait_partitions(replies, 4)
        for partition in (3, 2, 1, 0):
            worker.reply_partition = partition
            await scores(client, 3)


@pytest.mark.parametrize("in_a_row", [1, 4])
async def test_errors_of_the_consumer_cost_no_reply(
    kafka, topics, responder, patient, group, monkeypatch, in_a_row
):
    """A read drains its records and then fails: once, which reading again mends, or until a new consumer."""
    requests, replies = await topics(1, "requests"), await topics(3, "replies")
    getmany, to_fail = AIOKafkaConsumer.getmany, 0

    async def failing(self, *partitions, **options):
        nonlocal to_fail
        records = await getmany(self, *partitions, **options)
        if to_fail and replies in {place.topic for place in records}:
            to_fail -= 1
            raise KafkaError("the records just drained are lost")
        return records

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", failing)
    async with (
        responder(requests),
        Client(
            kafka, reply_topic=replies, topics={"p": requests}, reply_group=group, settings=patient
        ) as client,
    ):
        for _ in range(3 if in_a_row == 1 else 1):  # joining a group anew takes the embedded broker 20 s
            to_fail = in_a_row
            await scores(client, 1)
            assert to_fail == 0
        assert (client.rebuilds > 0) == (in_a_row > 1)
        assert client.ignored_replies == 0


async def test_broken_connections_cost_no_reply(kafka_proxy, topics, responder, patient, group):
    requests, replies = await topics(2, "requests"), await topics(3, "replies")
    async with (
        responder(requests),
        Client(
            kafka_proxy.address,
            reply_topic=replies,
            topics={"p": requests},
            reply_group=group,
            settings=patient,
        ) as client,
    ):
        await scores(client, 5)
        handles = [await client.submit("p", [f"text {number}"]) for number in range(20)]
        kafka_proxy.reset_connections()
        assert len([reply async for reply in client.collect(handles)]) == 20
        kafka_proxy.set_mode("refuse")
        await asyncio.sleep(1)
        kafka_proxy.set_mode("pass")
        await scores(client, 5)


async def test_a_second_member_takes_no_reply_for_good(apache_kafka, topics, responder, patient):
    """A rebalance takes partitions from the group; after the next one they are read from where we were."""
    requests, replies = await topics(1, "requests"), await topics(4, "replies")
    async with (
        responder(requests),
        Client(
            apache_kafka, reply_topic=replies, topics={"p": requests}, reply_group="clients", settings=patient
        ) as client,
    ):
        await scores(client, 5)
        group = client._reader._group
        intruder = AIOKafkaConsumer(
            replies, bootstrap_servers=apache_kafka, group_id=group, enable_auto_commit=False
        )
        async with intruder:
            assert intruder.assignment()
            handles = [await client.submit("p", [f"text {number}"]) for number in range(20)]
            async with asyncio.timeout(30):
                taken = 0
                while taken == 0:
                    batches = await intruder.getmany(timeout_ms=200)
                    taken += sum(len(records) for records in batches.values())
            assert not all(handle.done for handle in handles)
        found = [reply async for reply in client.collect(handles)]
        assert {reply.outcome for reply in found} == {Outcome.OK}
        assert len(found) == 20
        assert client.ignored_replies == 0  # read on from where we were, not from the beginning


async def test_a_consumer_that_died_silently_is_replaced(kafka, topics, responder, patient, monkeypatch):
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    monkeypatch.setattr("schemas.client.replies._REBUILD_S", 0)
    settings = dataclasses.replace(patient, grace_ms=2000)
    async with (
        responder(requests),
        Client(kafka, reply_topic=replies, topics={"p": requests}, settings=settings) as client,
    ):
        await scores(client, 1)
        consumer = client._reader._consumer
        assert consumer is not None
        for task in (consumer._fetcher._fetch_task, *consumer._fetcher._pending_tasks):
            task.cancel()  # what an unexpected error does: nothing is raised, nothing comes ever after
        handle = await client.submit("p", ["a"])
        with pytest.raises(TimeoutError):
            await client.score("p", ["overdue"], timeout_ms=1)
        assert (await handle.reply()).outcome is Outcome.OK  # read by the new consumer, from the old place
        assert client.rebuilds == 1


async def test_a_consumer_is_replaced_however_long_its_broker_is_away(
    kafka_proxy, topics, responder, patient
):
    """aiokafka's stop ends in a cancellation of its own there, which used to end the reading for good."""
    requests, replies = await topics(1, "requests"), await topics(2, "replies")
    async with (
        responder(requests),
        Client(kafka_proxy.address, reply_topic=replies, topics={"p": requests}, settings=patient) as client,
    ):
        assert (await client.score("p", ["before"])).results[0]["text"] == "before"
        kafka_proxy.set_mode("refuse")
        await asyncio.sleep(1)  # fetches wait for their next try
        client._reader._suspected = True  # as ten seconds after a reply was due
        await asyncio.sleep(2)
        kafka_proxy.set_mode("pass")
        assert (await client.score("p", ["after"])).results[0]["text"] == "after"
        assert client.rebuilds == 1
