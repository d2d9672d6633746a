"""The test run's own servers: they answer, and the fault proxy does what its modes say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kafka_service import Broker, answers, create_topic
from tcp_proxy import TcpProxy
from tools.demo.servers import embedded_broker, embedded_redis


async def produce_and_read(bootstrap: str, topic: str) -> list[bytes]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(4):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
    group = f"{topic}.group"
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    async with consumer:
        return sorted([(await consumer.getone()).value for _ in range(4)])


async def test_broker_takes_and_gives_records(kafka, topics):
    topic = await topics(partitions=2)
    async with asyncio.timeout(30):
        assert await produce_and_read(kafka, topic) == [b"0", b"1", b"2", b"3"]


async def test_embedded_broker_takes_and_gives_records(tmp_path: Path):
    with embedded_broker(tmp_path) as bootstrap:
        await answers(bootstrap)
        await create_topic(bootstrap, "requests", 2, {})
        async with asyncio.timeout(30):
            assert await produce_and_read(bootstrap, "requests") == [b"0", b"1", b"2", b"3"]


async def test_proxied_listener_keeps_clients_behind_the_proxy(broker: Broker, kafka_proxy: TcpProxy, topics):
    topic = await topics(partitions=2)
    before = kafka_proxy.accepted
    async with asyncio.timeout(30):
        assert await produce_and_read(kafka_proxy.address, topic) == [b"0", b"1", b"2", b"3"]
    assert kafka_proxy.accepted >= before + 4  # bootstrap and node connections of both clients


@pytest.mark.parametrize("source", ["redis_url", "embedded"])
async def test_redis_answers(source: str, redis_url: str, tmp_path: Path):
    async def check(url: str) -> None:
        async with Redis.from_url(url) as redis:
            await redis.set("test.services", b"here", px=5000)
            assert await redis.get("test.services") == b"here"

    if source == "embedded":
        with embedded_redis(tmp_path) as url:
            await check(url)
    else:
        await check(redis_url)


async def test_proxy_modes(redis_proxy: TcpProxy):
    def client() -> Redis:
        return Redis(host="127.0.0.1", port=redis_proxy.port, socket_timeout=0.2, retry=None)

    async with client() as redis:
        assert await redis.ping()
        redis_proxy.set_mode("swallow")
        with pytest.raises(RedisTimeoutError):
            await redis.ping()  # the open connection
        with pytest.raises(RedisTimeoutError):
            await redis.ping()  # and a new one
    redis_proxy.set_mode("refuse")
    async with client() as redis:
        with pytest.raises(RedisConnectionError):
            await redis.ping()
    redis_proxy.set_mode("delay", 0.01)
    async with client() as redis:
        assert await redis.ping()
    redis_proxy.set_mode("pass")
    async with client() as redis:
        assert await redis.ping()
