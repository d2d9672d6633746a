"""Whether any broker answers: asked every CHECK_S, so that a worker with nothing to do notices too.

On the event loop. The question is the smallest one that every broker answers (metadata of no topic); aiokafka
bounds each by the producer's request timeout (`replies.timeout_ms`). It mends nothing: aiokafka reconnects by
itself, and the watchdog ends a process that has records and makes no progress.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

log = structlog.get_logger(__name__)

CHECK_S = 2.0
MAX_ASKED = 3  # brokers a check, one after the other: the first that answers is enough


class BrokerCheck:
    """`client` gives the client to ask through, or None while there is none."""

    def __init__(self, servers: str, client: Callable[[], AIOKafkaClient | None]) -> None:
        self._servers = servers
        self._client = client
        self._silent_since_s: float | None = None
        self._answered: int | None = None  # who did last time

    @property
    def complaint(self) -> str | None:
        """None while a broker answers."""
        if self._silent_since_s is None:
            return None
        return f"no broker of {self._servers} answers since {time.monotonic() - self._silent_since_s:.0f} s"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            client = self._client()
            if client is None:
                continue
            asked_s = time.monotonic()
            self._answered = await _ask(client, self._answered)
            if self._answered is not None:
                if self._silent_since_s is not None:
                    log.info("brokers answer again", servers=self._servers)
                self._silent_since_s = None
            elif self._silent_since_s is None:
                log.warning("no broker answers: not ready until one does", servers=self._servers)
                self._silent_since_s = asked_s


async def _ask(client: AIOKafkaClient, first: int | None) -> int | None:
    """The broker that answered. `first` is asked first, then any: some may be away for long."""
    numbers = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(numbers)
    numbers.sort(key=lambda number: number != first)
    for number in numbers[:MAX_ASKED]:
        try:
            await client.send(number, MetadataRequest([]))
        except (KafkaError, OSError, TimeoutError):
            continue
        return int(number)
    return None
