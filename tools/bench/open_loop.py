"""Requests at a fixed rate, whatever the replies do: latencies count from the moment a request was due.

An open loop is what independent users are; a sender that waits for replies would spare a slow worker the very
requests that hurt (coordinated omission).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.client import Client, ClientError
from schemas.messages import Outcome, Reply
from tools.errors import UserError

LEAD_SECONDS = 0.5  # for making the tasks, before the first is due


@dataclass(frozen=True)
class Timed:
    """One reply; latency_ms from when its request was due, late_ms of that before it could be sent."""

    reply: Reply
    latency_ms: float
    late_ms: float


async def send_at_rate(
    client: Client, pipeline: str, requests: Sequence[Sequence[dict[str, str]]], rate: float, seconds: float
) -> list[Timed]:
    """`rate` requests a second for `seconds`, taken from `requests` in turn. UserError unless all are ok."""
    gc.collect()
    gc.freeze()  # the sender must not stop to look through a model library's objects
    start = time.perf_counter() + LEAD_SECONDS
    every = [
        _one(client, pipeline, requests[number % len(requests)], start + number / rate)
        for number in range(round(rate * seconds))
    ]
    try:
        timed = await asyncio.gather(*every)
    except ClientError as error:
        raise UserError(f"a request got no reply: {error}") from error
    bad = [each.reply for each in timed if each.reply.outcome is not Outcome.OK]
    if bad:
        raise UserError(f"{len(bad)} of {len(timed)} requests were not answered ok; the first: {bad[0]}")
    return timed


async def _one(client: Client, pipeline: str, samples: Sequence[dict[str, str]], due: float) -> Timed:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    sent = time.perf_counter()
    reply = await client.score(pipeline, samples, timeout_ms=10_000)
    return Timed(reply, (time.perf_counter() - due) * 1e3, (sent - due) * 1e3)
