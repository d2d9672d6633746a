"""The broker as the worker will find it: does it answer, are the topics there, how far behind is each group.

Every step is bounded by BROKER_SECONDS, however dead the broker is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.errors import KafkaError

from schemas.deadletter import dead_letter_topic
from tools.broker_state import Options, committed_lag, count_partitions
from tools.doctor.findings import Finding, fail, ok, warn
from worker.cluster import connection_options
from worker.settings import KafkaSettings

BROKER_SECONDS = 4.0
BACKLOG = 10_000  # records; with more of them ahead, a request of 20 ms has long expired


@dataclass(frozen=True)
class Stream:
    """What one pipeline reads and commits."""

    pipeline: str
    topic: str
    group: str


async def check_broker(
    settings: KafkaSettings, streams: Sequence[Stream], reply_topics: Sequence[str]
) -> list[Finding]:
    """One finding for the connection and, if it stands, one for each topic and group."""
    servers = settings.bootstrap_servers
    try:
        options = connection_options(settings)
        async with asyncio.timeout(BROKER_SECONDS):
            partitions = await count_partitions(options)
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        said = f"no answer in {BROKER_SECONDS:g} s" if isinstance(error, TimeoutError) else _text(error)
        mend = "start it, or set kafka.bootstrap_servers (and kafka.security) to where it is"
        return [fail("broker", f"{servers}: {said}", mend)]
    findings = [ok("broker", f"{servers} answers, {len(partitions)} topics")]
    findings += _check_topics(settings, streams, reply_topics, partitions)
    for stream in streams:
        if stream.topic in partitions:
            findings.append(await _check_lag(options, stream, partitions[stream.topic]))
    return findings


def _check_topics(
    settings: KafkaSettings,
    streams: Sequence[Stream],
    reply_topics: Sequence[str],
    partitions: Mapping[str, int],
) -> Iterator[Finding]:
    wanted = [(stream.topic, f"requests of {stream.pipeline}") for stream in streams]
    wanted += [(dead_letter_topic(stream.topic), f"dead letters of {stream.pipeline}") for stream in streams]
    wanted += [(topic, "replies, in the allow-list") for topic in reply_topics]
    for topic, purpose in wanted:
        if topic in partitions:
            yield ok("topic", f"{topic} ({purpose}): {partitions[topic]} partitions")
        elif settings.create_topics:
            yield ok("topic", f"{topic} ({purpose}): not there, the worker creates it (kafka.create_topics)")
        else:
            mend = (
                f"create it: kafka-topics.sh --bootstrap-server {settings.bootstrap_servers} --create "
                f"--topic {topic} --partitions {settings.topic_partitions}, or set kafka.create_topics: true"
            )
            yield fail("topic", f"{topic} ({purpose}) does not exist", mend)


async def _check_lag(options: Options, stream: Stream, num_partitions: int) -> Finding:
    try:
        async with asyncio.timeout(BROKER_SECONDS):
            lag = await committed_lag(options, stream.group, stream.topic, num_partitions)
    except (KafkaError, OSError, TimeoutError) as error:
        mend = "run doctor again; if it stays, the broker's log says why"
        return warn("lag", f"{stream.group} on {stream.topic}: {_text(error)}", mend)
    if lag.committed == 0:
        return ok("lag", f"{stream.group} has committed nothing on {stream.topic} yet ({lag.behind} records)")
    detail = f"{stream.group} is {lag.behind} records behind on {stream.topic}"
    return warn("lag", detail, "start more workers") if lag.behind > BACKLOG else ok("lag", detail)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
