"""The worker process: what is started in which order, and how it ends.

Start: probes (not ready), artifacts and pipelines, Redis, topics, producer, then the groups are joined.
End, on SIGTERM or SIGINT: stop reading; finish what was taken, at most `grace_ms`; what is left stays
uncommitted for its next owner; commit; leave the groups; close producer, Redis, engine. A second signal ends
the process at once. Exit codes: 0 an orderly end, 1 a failed start or end, 2 a wrong configuration,
pipelines' files included, 70 no progress (watchdog).
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import structlog
import uvloop
from aiokafka.errors import KafkaError

from engine.errors import ArtifactError, ConfigError
from engine.pipeline import ArtifactStore, Pipeline, read_pipeline
from schemas.deadletter import dead_letter_topic
from worker.assembly import (
    check_distinct,
    check_reply_topics,
    make_store,
    make_stream,
    open_artifacts,
    request_topic,
)
from worker.broker_check import BrokerCheck
from worker.cluster import connection_options
from worker.config import WorkerConfig
from worker.engine_metrics import EngineMetrics, loading
from worker.metrics import WorkerMetrics
from worker.node_metrics import NodeMetrics
from worker.probes import Probes
from worker.publisher import Publisher
from worker.redis_metrics import RedisMetrics
from worker.stream import Stream
from worker.topics import TopicsMissingError, ensure_topics
from worker.watchdog import EXIT_STALLED, Watchdog

log = structlog.get_logger(__name__)

HEARTBEAT_S = 0.25
SAME_SIGNAL_S = 1.0  # supervisors signal the process and its group: twice within milliseconds
EXIT_FAILED = 1
EXIT_CONFIG = 2


def run(config: WorkerConfig) -> int:
    """Serve until told to end; the exit code."""
    try:
        service = Service(config)
    except ConfigError as error:  # a certificate that is not there
        log.error("the configuration is wrong", error=str(error))
        return EXIT_CONFIG
    code = uvloop.run(service.run())
    if service.left_running:  # a node may never return, and Python waits for its thread on the way out
        last = threading.Timer(config.shutdown.close_ms / 1000, os._exit, [code])
        last.daemon = True
        last.start()
    return code


class Service:
    """One worker process."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._connection: dict[str, Any] = connection_options(config.kafka)
        self._metrics = WorkerMetrics()
        self._store = make_store(config.redis)
        self._metrics.registry.register(RedisMetrics(self._store))
        self._metrics.registry.register(NodeMetrics(lambda: [each.pipeline for each in self._streams]))
        self._publisher = Publisher(self._connection, config.replies, self._metrics)
        self._brokers = BrokerCheck(config.kafka.bootstrap_servers, lambda: self._publisher.client)
        self._streams: list[Stream] = []
        self._ending = asyncio.Event()
        self._exit_code = 0
        self._starting = True
        self._loading = False
        self._signalled_s: float | None = None
        self.left_running = False  # whether work was given up that some thread may still be doing
        self._watchdog = Watchdog(config.watchdog, self._streams, self._stalled, config.shutdown.close_ms)
        self.probes = Probes(config.http, self._metrics.registry, self._complaints, self._not_ready)

    async def run(self) -> int:
        """Start, serve, end."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        async with AsyncExitStack() as closing:
            starting = asyncio.create_task(self._start(closing))
            ending = asyncio.create_task(self._ending.wait())
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
            try:
                await starting
            except asyncio.CancelledError:
                log.info("told to end while starting")
            except ConfigError as error:
                log.error("the configuration is wrong", error=str(error))
                self._fail(EXIT_CONFIG)
            except (ArtifactError, TopicsMissingError, KafkaError, OSError) as error:
                log.error("the worker cannot start", error=str(error) or repr(error))
                self._fail(EXIT_FAILED)
            except Exception:  # a bug, ours or in a user's node: say where
                log.exception("the worker cannot start")
                self._fail(EXIT_FAILED)
            await ending
            await self._drain()
        log.info("ended", exit_code=self._exit_code)
        return self._exit_code

    async def _start(self, closing: AsyncExitStack) -> None:
        config = self._config
        await self.probes.start()
        closing.push_async_callback(self.probes.close)
        for lasting in (self._beat(), self._brokers.run()):
            closing.callback(asyncio.create_task(lasting).cancel)
        closing.callback(self._watchdog.stop)
        artifacts = open_artifacts(config.engine)
        closing.callback(artifacts.close)
        self._metrics.registry.register(EngineMetrics(artifacts))
        pipelines = await self._load(artifacts, closing)
        await self._store.start()
        closing.push_async_callback(self._store.close)
        pairs = list(zip(config.pipelines, pipelines, strict=True))
        check_distinct(pairs)
        topics = {request_topic(settings, pipeline) for settings, pipeline in pairs}
        check_reply_topics(config.replies.topics, topics)
        useful = frozenset(config.replies.topics) | {dead_letter_topic(topic) for topic in topics}
        await ensure_topics(self._connection, config.kafka, frozenset(topics), useful)
        await self._publisher.start(useful)
        closing.push_async_callback(self._publisher.close, config.shutdown.close_ms / 1000)
        for settings, pipeline in pairs:
            metrics = self._metrics.for_pipeline(pipeline.name)
            self._streams.append(
                make_stream(
                    config,
                    settings,
                    self._connection,
                    pipeline,
                    self._publisher,
                    self._store,
                    metrics,
                    self.fatal,
                )
            )
        gc.collect()
        gc.freeze()  # what is loaded stays: otherwise the collector walks it all again and again
        await asyncio.gather(*(stream.start() for stream in self._streams))
        self._watchdog.start()
        self._starting = False
        log.info("serving", pipelines=[each.pipeline.name for each in self._streams])

    async def _load(self, artifacts: ArtifactStore, closing: AsyncExitStack) -> list[Pipeline]:
        pipelines: list[Pipeline] = []
        self._loading = True
        for index, settings in enumerate(self._config.pipelines):
            try:
                written = read_pipeline(settings.config)
            except ConfigError as error:
                if error.file is not None:
                    raise
                raise ConfigError(f"pipelines.{index}.config", str(settings.config), error.reason) from None
            pipeline = await asyncio.to_thread(Pipeline.open, written, artifacts)
            closing.callback(pipeline.close, self._config.shutdown.close_ms / 1000)
            pipelines.append(pipeline)
            log.info(
                "pipeline loaded", pipeline=pipeline.name, capacity=dataclasses.asdict(pipeline.capacity)
            )
        self._loading = False
        for name, report in artifacts.load_reports.items():
            log.info("artifact loaded", artifact=name, **loading(report))
        return pipelines

    def _fail(self, code: int) -> None:
        self._exit_code = code
        self._ending.set()

    async def _drain(self) -> None:
        shutdown = self._config.shutdown
        started_s = time.monotonic()
        finished = await asyncio.gather(*(each.drain(shutdown.grace_ms / 1000) for each in self._streams))
        self._watchdog.stop()
        self.left_running = not all(finished)
        committed = await asyncio.gather(*(each.close(shutdown.close_ms / 1000) for each in self._streams))
        if not all(committed):
            self._exit_code = self._exit_code or EXIT_FAILED
        log.info(
            "drained",
            seconds=round(time.monotonic() - started_s, 3),
            gave_back=self.left_running,
            committed=all(committed),
        )

    def fatal(self, reason: str) -> None:
        """Something that this process cannot mend: end it in order, with an exit code that says so."""
        if not self._ending.is_set():
            log.critical("the worker ends: unanswered records go to their next owner", reason=reason)
        self._exit_code = EXIT_STALLED
        self._ending.set()

    def _stalled(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self.fatal, reason)

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._loading:  # a thread inside a model's loading cannot be stopped; nothing was taken yet
            log.info("ended while loading", signal=name)
            os._exit(0)
        if self._signalled_s is None:
            log.info("ending: no more records are taken", signal=name)
            self._signalled_s = time.monotonic()
            self._ending.set()
        elif time.monotonic() - self._signalled_s > SAME_SIGNAL_S:
            log.critical("second signal: ending at once; records in flight will be answered again")
            os._exit(128 + number)

    async def _beat(self) -> None:
        while True:
            self._watchdog.heartbeat.beat_s = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)

    def _complaints(self) -> list[str]:
        return self._watchdog.complaints

    def _not_ready(self) -> list[str]:
        if self._starting:
            return ["starting"]
        reasons = [f"{each.name}: {why}" for each in self._streams if (why := each.complaint)]
        if why := self._brokers.complaint:
            reasons.append(why)
        if not self._publisher.ready:
            reasons.append("replies cannot be published")
        if self._ending.is_set():
            reasons.append("ending")
        return reasons
