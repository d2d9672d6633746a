"""How the sixty are sent: a few at a time, then a burst with cancellations at its end, then the rest.

The burst makes cancelling certain instead of a race. Its first request is the largest; once the worker's own
counter says that its batch runs, the others follow at once and wait in the worker's queue. The last three go
with the lowest priority and are cancelled as soon as each is sent: milliseconds, while what is ahead of them
takes hundreds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from schemas.client import Client, ClientError
from schemas.messages import Outcome, Reply
from tools.demo.queries import Query
from tools.demo.raw_sender import RawSender
from tools.demo.tally import Answered
from tools.errors import UserError

AT_ONCE = 3  # requests under way in the mixed traffic
TIMEOUT_MS = 120_000  # a slow machine is no reason to expire in a demo
PASSED_MS = -2_000  # the deadline of those that are too late before they start
LOWEST_PRIORITY = 9
BATCH_SECONDS = 30.0  # for the burst's first batch to begin
POLL_SECONDS = 0.01

Tick = Callable[[], None]
NumBatches = Callable[[str], float]
"""How many batches of a pipeline the worker has begun, from its metrics. Blocks; called on a thread."""


class Scenario:
    """Sends through `client` and `raw` on one event loop; `tick` is called once a request that ended."""

    def __init__(
        self, client: Client, raw: RawSender, topics: dict[str, str], num_batches: NumBatches, tick: Tick
    ) -> None:
        self._client = client
        self._raw = raw
        self._topics = topics
        self._num_batches = num_batches
        self._tick = tick
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self, queries: Sequence[Query]) -> list[Answered]:
        """Every query once; the answers in the same order."""
        burst = [index for index, query in enumerate(queries) if query.burst]
        first, last = (burst[0], burst[-1] + 1) if burst else (len(queries), len(queries))
        answers = await self._mixed(queries[:first])
        answers += await self._burst(queries[first:last])
        answers += await self._mixed(queries[last:])
        return answers

    async def _mixed(self, queries: Sequence[Query]) -> list[Answered]:
        async def one(query: Query) -> Answered:
            async with self._places:
                return await self._send(query)

        return list(await asyncio.gather(*map(one, queries)))

    async def _burst(self, queries: Sequence[Query]) -> list[Answered]:
        if not queries:
            return []
        opener = queries[0]
        before = await asyncio.to_thread(self._num_batches, opener.pipeline)
        tasks = [asyncio.create_task(self._send(opener))]
        try:
            async with asyncio.timeout(BATCH_SECONDS):
                while await asyncio.to_thread(self._num_batches, opener.pipeline) <= before:  # noqa: ASYNC110 - a counter of another process
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise UserError(
                f"the worker began no batch of {opener.pipeline} in {BATCH_SECONDS:g} s"
            ) from None
        tasks += [asyncio.create_task(self._send(query)) for query in queries[1:]]
        return list(await asyncio.gather(*tasks))

    async def _send(self, query: Query) -> Answered:
        sent = time.perf_counter()
        try:
            if query.raw is not None:
                reply = await self._raw.send(self._topics[query.pipeline], query.raw, TIMEOUT_MS / 1e3)
            else:
                reply = await self._score(query)
        except (ClientError, TimeoutError):
            return Answered(query, None, None)  # the tally says which
        finally:
            self._tick()
        return Answered(query, reply, (time.perf_counter() - sent) * 1e3)

    async def _score(self, query: Query) -> Reply:
        cancelled = query.fate is Outcome.CANCELLED
        pending = await self._client.submit(
            query.pipeline,
            query.samples,
            timeout_ms=PASSED_MS if query.fate is Outcome.EXPIRED else TIMEOUT_MS,
            id=query.id,
            priority=LOWEST_PRIORITY if cancelled else 0,
        )
        if cancelled and not await self._client.cancel(pending.id):
            raise UserError(f"Redis did not take the cancellation of {query.id}")
        return await pending.reply()
