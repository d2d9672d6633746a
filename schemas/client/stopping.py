"""Stopping an aiokafka consumer whose broker may be away, for the client, the worker and the tools.

There aiokafka's stop() ends in the cancellation of its own fetches, before its connections are closed:
awaited as it is, it looks as if whoever awaits it had been cancelled. Event loop only.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer

STOP_S = 20.0  # an orderly end takes milliseconds; one that takes so long has hung


async def stop_consumer(consumer: AIOKafkaConsumer, timeout_s: float = STOP_S) -> BaseException | None:
    """Stop it, at most so long; what stood in the way of an orderly end. Its connections are closed after
    that, too, and where the caller is cancelled meanwhile."""
    stopping = asyncio.ensure_future(consumer.stop())
    error: BaseException | None = None
    try:
        await asyncio.wait({stopping}, timeout=timeout_s)
    finally:
        stopping.cancel()  # too late to matter where it is done
        await asyncio.wait({stopping})
        error = asyncio.CancelledError() if stopping.cancelled() else stopping.exception()
        if error is not None:
            await consumer._client.close()
    return error
