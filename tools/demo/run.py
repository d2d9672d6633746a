"""The demo from its servers to its count: starts what it needs, sends, stops, reads what the broker keeps.

All that is started is a context manager on one stack: every way out (done, wrong, Ctrl-C, SIGTERM) ends
the processes in the opposite order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from schemas.client import Client, ClientSettings
from schemas.deadletter import dead_letter_topic
from schemas.messages import Outcome
from tools.broker_state import committed_lag, count_records
from tools.demo.queries import Query
from tools.demo.raw_sender import RawSender
from tools.demo.scenario import NumBatches, Scenario
from tools.demo.servers import embedded_broker, embedded_redis
from tools.demo.settings import (
    EMBEDDED_FETCH_WAIT_MS,
    FETCH_WAIT_MS,
    PARTITIONS,
    REPLY_TOPIC,
    Servers,
    group_of,
    request_topics,
    worker_settings,
)
from tools.demo.tally import Answered, WorkerSide
from tools.demo.topics import create_topics
from tools.steps import Steps
from tools.worker_process import WorkerProcess, run_worker

WATCH_SECONDS = 0.5
REPLY_GRACE_MS = 60_000  # replies to the expired come as soon as the worker gets to them


@dataclass(frozen=True)
class Result:
    """What came of it. `exit_status` is the worker's own, after SIGTERM; its log stays in `worker_log`."""

    answers: list[Answered]
    worker: WorkerSide
    exit_status: int
    worker_log: str


def start_servers(
    stack: ExitStack, folder: Path, bootstrap_servers: str | None, redis_url: str | None
) -> Servers:
    """The user's own servers where given, embedded ones otherwise."""
    wait_ms = FETCH_WAIT_MS if bootstrap_servers else EMBEDDED_FETCH_WAIT_MS
    bootstrap = bootstrap_servers or stack.enter_context(embedded_broker(folder))
    return Servers(bootstrap, redis_url or stack.enter_context(embedded_redis(folder)), wait_ms)


def run_demo(servers: Servers, artifact: Path, folder: Path, queries: Sequence[Query], say: Steps) -> Result:
    """Start a worker, send the queries, stop it and look at what is left in the broker."""
    topics = request_topics()
    dead = [dead_letter_topic(topic) for topic in topics.values()]
    options = {"bootstrap_servers": servers.bootstrap}
    say("creating topics")
    every = [*topics.values(), *dead, REPLY_TOPIC]
    asyncio.run(create_topics(servers.bootstrap, dict.fromkeys(every, PARTITIONS)))
    dead_before = asyncio.run(count_records(options, dead, PARTITIONS))
    say("starting the worker")
    with run_worker(worker_settings(servers, artifact), folder) as worker:
        say(f"sending {len(queries)} requests")
        answers = asyncio.run(_send(servers, topics, queries, worker, say))
        runs = worker.total("boundgen_model_requests_total")
        runs -= worker.total("boundgen_model_requests_total", outcome=Outcome.OK.value)
        say("stopping the worker")
        status = worker.child.stop()
        log = worker.child.last_words()
    say("reading what the broker keeps")
    dead_letters = asyncio.run(count_records(options, dead, PARTITIONS)) - dead_before
    lags = [asyncio.run(committed_lag(options, group_of(name), topics[name], PARTITIONS)) for name in topics]
    side = WorkerSide(dead_letters, int(runs), sum(lag.behind for lag in lags))
    return Result(answers, side, status, log)


async def _send(
    servers: Servers, topics: dict[str, str], queries: Sequence[Query], worker: WorkerProcess, say: Steps
) -> list[Answered]:
    """Run the scenario; ChildError as soon as the worker has ended, since nobody would answer any more."""
    settings = ClientSettings(
        fetch_max_wait_ms=servers.fetch_wait_ms,
        grace_ms=REPLY_GRACE_MS,
        redis_timeout_ms=1000,  # a cancellation that came late would be counted as lost
    )
    client = Client(
        servers.bootstrap,
        reply_topic=REPLY_TOPIC,
        topics=topics,
        redis_url=servers.redis_url,
        settings=settings,
    )
    async with client, RawSender(servers.bootstrap, REPLY_TOPIC, servers.fetch_wait_ms) as raw:
        scenario = Scenario(client, raw, topics, _batches_of(worker), say.advance)
        sending = asyncio.create_task(scenario.run(queries))
        try:
            while not (await asyncio.wait({sending}, timeout=WATCH_SECONDS))[0]:
                worker.child.check_running()
                say.advance(0)  # on busy cores one request takes seconds
            return await sending
        finally:
            sending.cancel()


def _batches_of(worker: WorkerProcess) -> NumBatches:
    return lambda pipeline: worker.total("boundgen_batches_total", pipeline=pipeline)
