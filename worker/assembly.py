"""Who gets what: a stream's parts, made from the configuration's sections, each given only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engine.errors import ConfigError
from engine.pipeline import ArtifactStore, Pipeline
from schemas.deadletter import dead_letter_topic
from schemas.plain import Limits
from worker.admission import Admission
from worker.config import WorkerConfig
from worker.deadlines import DeadlinePolicy
from worker.metrics import PipelineMetrics
from worker.publisher import Publisher
from worker.redis_deadlines import DeadlineStore
from worker.redis_line import LineOptions
from worker.routing import Router
from worker.settings import EngineSettings, PipelineSettings, RedisSettings
from worker.stream import Stream, StreamOptions


def request_topic(settings: PipelineSettings, pipeline: Pipeline) -> str:
    """Where a pipeline's requests come from."""
    return settings.topic or f"boundgen.{pipeline.name}.requests"


def consumer_group(settings: PipelineSettings, pipeline: Pipeline) -> str:
    """Which group shares that topic."""
    return settings.group or f"boundgen.{pipeline.name}"


def check_distinct(pairs: Sequence[tuple[PipelineSettings, Pipeline]]) -> None:
    """ConfigError unless names, topics and groups of the pipelines are all different."""
    seen: dict[tuple[str, str], int] = {}
    for index, (settings, pipeline) in enumerate(pairs):
        uses = {
            "config": pipeline.name,
            "topic": request_topic(settings, pipeline),
            "group": consumer_group(settings, pipeline),
        }
        for key, value in uses.items():
            if (other := seen.setdefault((key, value), index)) != index:
                word = "pipeline name" if key == "config" else key
                raise ConfigError(f"pipelines.{index}.{key}", value, f"the same {word} as pipelines.{other}")


def check_reply_topics(reply_topics: Sequence[str], request_topics: Iterable[str]) -> None:
    """ConfigError for a reply that would come back as a request, or lie among the dead letters."""
    for topic in request_topics:
        for index, reply_topic in enumerate(reply_topics):
            if reply_topic in (topic, dead_letter_topic(topic)):
                reason = f"requests of a pipeline come from {topic!r}: replies need a topic of their own"
                raise ConfigError(f"replies.topics.{index}", reply_topic, reason)


def open_artifacts(settings: EngineSettings) -> ArtifactStore:
    """Where pipelines find their artifacts, each loaded at its first use. ConfigError."""
    try:
        return ArtifactStore(
            settings.artifacts, device=settings.device, lanes=settings.lanes, threads=settings.threads
        )
    except ConfigError as error:
        raise error.under("engine") from None


def make_store(settings: RedisSettings) -> DeadlineStore:
    """The deadline store, not yet connected."""
    if settings.url is None:
        return DeadlineStore(None)
    options = LineOptions(
        url=settings.url.get_secret_value(),
        timeout_ms=settings.timeout_ms,
        connect_timeout_ms=settings.connect_timeout_ms,
        retry_ms=settings.retry_ms,
        refresh_ms=settings.refresh_ms,
    )
    return DeadlineStore(options)


def make_stream(
    config: WorkerConfig,
    settings: PipelineSettings,
    connection: dict[str, Any],
    pipeline: Pipeline,
    publisher: Publisher,
    store: DeadlineStore,
    metrics: PipelineMetrics,
    on_fatal: Callable[[str], None],
) -> Stream:
    """One pipeline's stream, not yet started."""
    router = Router(frozenset(config.replies.topics), publisher.num_partitions)
    policy = DeadlinePolicy(**config.deadlines.model_dump())
    queue = settings.queue or config.queue
    limits = Limits(**config.limits.model_dump())
    admission = Admission(pipeline, router, limits, store.clock, policy, queue.max_attempts)
    options = StreamOptions(
        worker=config.name,
        topic=request_topic(settings, pipeline),
        group=consumer_group(settings, pipeline),
        kafka=config.kafka,
        queue=queue,
        max_reply_bytes=config.replies.max_bytes,
        publish_late=config.replies.publish_late,
    )
    return Stream(options, connection, pipeline, admission, publisher, store, metrics, on_fatal)
