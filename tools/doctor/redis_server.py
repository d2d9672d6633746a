"""Redis as the worker will find it: does it answer, and how far is its clock from this machine's.

Bounded by REDIS_SECONDS. A worker lives without Redis (messages carry their own deadlines), so a Redis that
was configured and does not answer fails here: cancelling and changing deadlines would silently do nothing.
"""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tools.doctor.findings import Finding, fail, ok, warn

REDIS_SECONDS = 3.0
CLOCK_MS = 1000.0  # the worker measures and corrects it; more than this points to a clock that nobody sets
ROUND_TRIP_MS = 5.0  # of a budget of 20 ms, and one round trip a batch


async def check_redis(url: str | None) -> list[Finding]:
    """One finding, or two where the server is far or its clock is off."""
    if url is None:
        return [ok("redis", "off (redis.url is null): deadlines come from the messages alone")]
    client = Redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
    shown = url.rpartition("@")[2]  # never the password
    try:
        async with asyncio.timeout(REDIS_SECONDS):
            await client.ping()
            before = time.time()
            seconds, microseconds = await client.time()
            after = time.time()
    except (RedisError, OSError, TimeoutError, ValueError) as error:
        silent = isinstance(error, TimeoutError | RedisTimeoutError)
        said = f"no answer in {REDIS_SECONDS:g} s" if silent else str(error) or type(error).__name__
        mend = "start it, set redis.url to where it is, or to null to live without"
        return [fail("redis", f"{shown}: {said}", mend)]
    finally:
        await client.aclose()
    return judge(shown, seconds + microseconds / 1e6 - (before + after) / 2, after - before)


def judge(shown: str, offset_s: float, round_trip_s: float) -> list[Finding]:
    """Findings for a server that answered: clock offset (Redis minus here) and round trip, in seconds."""
    offset_ms, round_trip_ms = offset_s * 1e3, round_trip_s * 1e3
    findings = [
        ok("redis", f"{shown} answers in {round_trip_ms:.1f} ms, its clock {offset_ms:+.0f} ms from ours")
    ]
    if abs(offset_ms) > CLOCK_MS:
        mend = "set both clocks (NTP); producers that send deadline_ms by their own clock will misjudge it"
        findings.append(warn("redis clock", f"{offset_ms:+.0f} ms from this machine's", mend))
    if round_trip_ms > ROUND_TRIP_MS:
        mend = "put it nearer, or raise redis.timeout_ms and count with the delay"
        findings.append(warn("redis distance", f"{round_trip_ms:.1f} ms a round trip", mend))
    return findings
