"""A bare echo, for comparison with the worker: take a record, answer it with a fixed reply, nothing else.

    python -m tools.bench.echo BOOTSTRAP_SERVERS TOPIC

What a request costs here is Kafka and the client: two produce and two fetch hops. Runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.codec import decode_request, encode_reply
from schemas.headers import parse_headers
from schemas.messages import Outcome, Reply


async def echo(servers: str, topic: str) -> None:
    """Answer every record of `topic` that asks for a reply, and commit as aiokafka does by itself."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=servers, group_id=f"{topic}.echo", auto_offset_reset="earliest"
    )
    producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=0, acks="all")
    async with producer, consumer:
        async for record in consumer:
            address = parse_headers(record.headers)
            if address.topic is None or record.value is None:
                continue
            request = decode_request(record.value)
            rows = tuple({"id": index, "yes": 0.5} for index, _ in enumerate(request.samples))
            value = encode_reply(Reply(id=request.id, outcome=Outcome.OK, results=rows))
            await producer.send(address.topic, value, headers=list(address.echo))


async def main(servers: str, topic: str) -> None:
    """Run `echo` until SIGTERM."""
    task = asyncio.create_task(echo(servers, topic))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
