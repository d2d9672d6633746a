"""Records that no client would write, and the worker's answers to them.

A producer and a reader beside the client's, which refuses to send what is malformed. One event
loop; `async with` starts and ends both.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.codec import decode_reply
from schemas.headers import parse_headers, request_headers
from schemas.messages import Reply


class RawSender:
    """Sends bytes as they are and waits for the reply with the same correlation id."""

    def __init__(self, servers: str, reply_topic: str, fetch_wait_ms: int) -> None:
        self._reply_topic = reply_topic
        self._producer = AIOKafkaProducer(bootstrap_servers=servers)
        self._consumer = AIOKafkaConsumer(
            reply_topic, bootstrap_servers=servers, fetch_max_wait_ms=fetch_wait_ms
        )
        self._waiting: dict[bytes, asyncio.Future[Reply]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._producer.start()
            await self._consumer.start()
            await self._consumer.seek_to_end()
            for partition in self._consumer.assignment():
                await self._consumer.position(partition)  # only now is the end fixed
        except BaseException:
            await self.__aexit__()
            raise
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    async def send(self, topic: str, value: bytes, wait_s: float) -> Reply:
        """Publish and wait. TimeoutError if no reply comes within `wait_s`."""
        correlation_id = uuid.uuid4().bytes
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        await self._producer.send_and_wait(
            topic, value, headers=request_headers(self._reply_topic, correlation_id)
        )
        async with asyncio.timeout(wait_s):
            return await reply

    async def _read(self) -> None:
        async for record in self._consumer:
            found = self._waiting.pop(parse_headers(record.headers).correlation_id or b"", None)
            if found is not None and record.value is not None:
                found.set_result(decode_reply(record.value))
