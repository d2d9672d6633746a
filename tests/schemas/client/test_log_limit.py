"""While brokers are away, what aiokafka says of it is bounded; after close() nothing is left out."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from schemas.client import Client, ClientError
from schemas.client.log_limit import LogLimit

LOGGER = logging.getLogger("aiokafka.consumer.fetcher")


def filters():
    return [each for each in LOGGER.filters if isinstance(each, LogLimit)]


async def test_a_closed_port_says_little(kafka_proxy, topics, patient, caplog):
    """Dozens of lines a second without."""
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    client = Client(kafka_proxy.address, reply_topic=replies, topics={"p": requests}, settings=patient)
    async with asyncio.timeout(60), client:
        assert len(filters()) == 1
        kafka_proxy.set_mode("refuse")
        await asyncio.sleep(2)
        kafka_proxy.set_mode("pass")
    warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
    said = Counter((each.pathname, each.lineno) for each in warned if each.name.startswith("aiokafka"))
    assert set(said.values()) == {1}
    assert not filters()


async def test_a_consumer_that_cannot_be_replaced_says_little(kafka_proxy, topics, patient, caplog):
    """Five lines a second without: an overdue reply has it replaced, which fails while no broker is there."""
    requests, replies = await topics(1, "requests"), await topics(1, "replies")
    client = Client(kafka_proxy.address, reply_topic=replies, topics={"p": requests}, settings=patient)
    async with asyncio.timeout(60), client:
        kafka_proxy.set_mode("refuse")
        client._reader._suspected = True  # as ten seconds after a reply was due
        await asyncio.sleep(3)
        kafka_proxy.set_mode("pass")
    said = [each for each in caplog.records if "reply consumer" in each.getMessage()]
    assert len(said) == 1, [each.getMessage() for each in said]


async def test_a_start_that_fails_leaves_no_filter(patient):
    with pytest.raises(ClientError):
        await Client("127.0.0.1:1", settings=patient).start()
    assert not filters()


def test_what_passes_says_how_many_did_not(caplog):
    now_s = 0.0
    limits = [LogLimit(lambda: now_s), LogLimit(lambda: now_s)]  # of two clients
    for limit in limits:
        limit.attach()
    with caplog.at_level(logging.INFO):
        for now_s in (0.0, 1.0, 9.9, 10.0, 12.0, 20.0):
            LOGGER.error("node %s", 1)
            LOGGER.info("at %s", now_s)
            if now_s == 1.0:
                LOGGER.warning("another")
    said = [each.getMessage() for each in caplog.records if each.levelno > logging.INFO]
    assert said == ["node 1", "another", "node 1 (and 2 more like it)", "node 1 (and 1 more like it)"]
    assert len(caplog.records) == len(said) + 6
    for limit in limits:
        limit.detach()
    LOGGER.error("after")
    LOGGER.error("after")
    assert [each.getMessage() for each in caplog.records[-2:]] == ["after", "after"]
