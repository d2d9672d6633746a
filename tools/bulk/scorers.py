"""Who scores, made from the worker's configuration: this process, or workers that are running."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from engine.pipeline import ArtifactStore, Pipeline
from schemas.client import ClientSettings
from schemas.plain import Limits
from tools.bulk.asking import AskOptions
from tools.bulk.engine_scorer import CHARS_A_TOKEN, EngineScorer
from tools.bulk.kafka_scorer import KafkaScorer, Shape, kafka_scorer
from tools.bulk.relay import Stop
from tools.bulk.setup import Job
from tools.bulk.silence import SilenceWatch
from tools.bulk.wire_samples import RECORD_BYTES
from tools.bulk.workspace import digest
from worker.cluster import connection_options

QUEUE_SHARE = 8  # of a worker's queue, at most one part in so many is a bulk run's
BYTES_A_CHAR = 4  # at most, in UTF-8
GRACE_MS = 5_000.0  # after a request's timeout: its `expired` reply is on its way
SEND_TIMEOUT_S = 30.0  # a moved leader costs seconds; nothing hurries here
GIVE_UP_S = 600.0  # without any answer; then the run ends and can go on when there are workers again


@contextlib.contextmanager
def engine_scorer(job: Job, threads: int, stop: Stop) -> Iterator[EngineScorer]:
    """The pipeline, loaded in this process as a worker would."""
    engine = job.worker.engine
    store = ArtifactStore(engine.artifacts, device=engine.device, lanes=engine.lanes, threads=engine.threads)
    try:
        with Pipeline.open(job.pipeline, store) as pipeline:
            scorer = EngineScorer(pipeline, threads, stop)
            try:
                yield scorer
            finally:
                scorer.close()
    finally:
        store.close()


@contextlib.contextmanager
def workers_scorer(job: Job, timeout_ms: int, in_flight: int, stop: Stop) -> Iterator[KafkaScorer]:
    """Workers that run somewhere, reached as the configuration says. ConfigError where that cannot be."""
    kafka, bounds = job.worker.kafka, job.pipeline.bounds
    queue = job.settings.queue or job.worker.queue
    options = connection_options(kafka)
    secured = {key: value for key, value in options.items() if key.startswith(("security_", "ssl_", "sasl_"))}
    # A queue that bulk requests could fill would keep online ones in their topic, where no priority helps.
    under_way = max(1, min(in_flight, queue.max_requests // QUEUE_SHARE))
    chars = queue.max_bytes // (QUEUE_SHARE * under_way * BYTES_A_CHAR)
    shape = Shape(
        rows=min(bounds.samples, job.worker.limits.max_samples),
        chars=min(chars, bounds.tokens_per_request * CHARS_A_TOKEN, RECORD_BYTES // BYTES_A_CHAR),
        in_flight=under_way,
        limits=Limits(**job.worker.limits.model_dump()),
    )
    topic = job.settings.topic or f"boundgen.{job.pipeline.name}.requests"
    connection = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "reply_topic": job.worker.replies.topics[0],
        "topics": {job.pipeline.name: topic},
    }
    settings = ClientSettings(
        grace_ms=GRACE_MS,
        send_timeout_s=SEND_TIMEOUT_S,
        fetch_max_wait_ms=kafka.fetch_max_wait_ms,
        kafka=secured,
    )
    asking = AskOptions(job.pipeline.name, digest(job.identity), timeout_ms, GIVE_UP_S)
    watch = SilenceWatch(options, job.settings.group or f"boundgen.{job.pipeline.name}", topic)
    with kafka_scorer(connection, settings, asking, shape, stop, watch) as scorer:
        yield scorer
