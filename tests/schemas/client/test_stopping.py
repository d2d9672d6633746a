"""Stopping a consumer while its broker is away."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.client.stopping import stop_consumer


async def test_no_cancellation_and_no_connection_comes_out_of_it(kafka_proxy, topics):
    topic = await topics(1, "requests")
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka_proxy.address, fetch_max_wait_ms=20)
    async with asyncio.timeout(60):
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.getmany(timeout_ms=200)
        kafka_proxy.set_mode("refuse")
        await asyncio.sleep(1)  # the fetch waits for its next try: aiokafka cancels it, and lets that out
        assert isinstance(await stop_consumer(consumer, 20), asyncio.CancelledError)
        kafka_proxy.set_mode("pass")
    assert not any(each.connected() for each in consumer._client._conns.values())
    assert consumer._client._sync_task is None


async def test_an_orderly_end_has_no_error(kafka):
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka)
    await consumer.start()
    assert await stop_consumer(consumer, 20) is None
