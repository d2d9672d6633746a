"""Prometheus metrics of one worker, in a registry of their own.

Every record taken ends in exactly one place: boundgen_records_total = boundgen_requests_total (all outcomes)
+ boundgen_released_total (given back unanswered at a rebalance or shutdown) + boundgen_inflight_requests.
prometheus_client's own locks make every call safe on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from schemas.messages import Outcome

STAGE_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCH_TOKENS = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
STAGES = ("tokenize", "queue", "lookup", "execute", "reply", "total")


class WorkerMetrics:
    """The whole process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.records = self._counter("records", "Records taken from request topics")
        self.requests = self._counter("requests", "Records settled, by what became of them", "outcome")
        self.model_requests = self._counter(
            "model_requests", "Requests whose model node ran, by their final outcome", "outcome"
        )
        self.released = self._counter("released", "Records given back unanswered: the next owner answers")
        self.redelivered = self._counter("redelivered", "Records that an earlier owner had taken already")
        self.dead_letters = self._counter(
            "dead_letters", "Dead letters, written or lost because they could not be", "result"
        )
        self.prefix_tokens = self._counter(
            "prefix_tokens", "Tokens of prompts that prefixes spared the model, by their kind", "kind"
        )
        self.batches = self._counter("batches", "Batches handed to the engine")
        self.batches_cut = self._counter("batches_cut", "Batches kept smaller for the sake of deadlines")
        self.rebalances = self._counter("rebalances", "Assignments received")
        self.commits = self._counter("commits", "Offset commits", "result")
        self.poll_errors = self._counter("poll_errors", "Reads that failed", "error")
        self.odd_deadlines = self._counter("odd_deadlines", "Deadlines that had to be corrected", "oddity")
        self.publish_errors = Counter(
            "boundgen_publish_errors_total", "Sends tried again", ["error"], registry=self.registry
        )
        self.publisher_rebuilds = Counter(
            "boundgen_publisher_rebuilds_total", "Producers whose sender died", registry=self.registry
        )
        self.stage = self._histogram("stage_seconds", "Time by stage", STAGE_SECONDS, "stage")
        self.batch_tokens = self._histogram("batch_tokens", "Tokens a batch", BATCH_TOKENS)
        self.queue = self._gauge("queue_requests", "Prepared requests that wait for a slot")
        self.inflight = self._gauge("inflight_requests", "Records taken and not settled")
        self.inflight_bytes = self._gauge("inflight_bytes", "Bytes of the records taken and not settled")
        self.uncommitted = self._gauge("uncommitted_records", "Records that a crash now would bring again")
        self.lag = self._gauge("lag_records", "Records of the partitions held that are not done yet")
        self.partitions = self._gauge("assigned_partitions", "Partitions held")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"boundgen_{name}_total", text, ["pipeline", *labels], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"boundgen_{name}", text, ["pipeline"], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        names = ["pipeline", *labels]
        return Histogram(f"boundgen_{name}", text, names, buckets=buckets, registry=self.registry)

    def for_pipeline(self, pipeline: str) -> PipelineMetrics:
        return PipelineMetrics(self, pipeline)


class PipelineMetrics:
    """The same, with one pipeline's label bound once: looking children up costs more than counting."""

    def __init__(self, metrics: WorkerMetrics, pipeline: str) -> None:
        self._metrics, self._pipeline = metrics, pipeline
        self.records = metrics.records.labels(pipeline)
        self.requests = {each: metrics.requests.labels(pipeline, each.value) for each in Outcome}
        self.model_requests = {each: metrics.model_requests.labels(pipeline, each.value) for each in Outcome}
        self.released = metrics.released.labels(pipeline)
        self.redelivered = metrics.redelivered.labels(pipeline)
        self.dead_letters_written = metrics.dead_letters.labels(pipeline, "written")
        self.dead_letters_lost = metrics.dead_letters.labels(pipeline, "lost")
        self.stage = {each: metrics.stage.labels(pipeline, each) for each in STAGES}
        self.batch_tokens = metrics.batch_tokens.labels(pipeline)
        self.prefix_tokens = {
            each: metrics.prefix_tokens.labels(pipeline, each) for each in ("constant", "request")
        }
        self.batches = metrics.batches.labels(pipeline)
        self.batches_cut = metrics.batches_cut.labels(pipeline)
        self.queue = metrics.queue.labels(pipeline)
        self.inflight = metrics.inflight.labels(pipeline)
        self.inflight_bytes = metrics.inflight_bytes.labels(pipeline)
        self.uncommitted = metrics.uncommitted.labels(pipeline)
        self.lag = metrics.lag.labels(pipeline)
        self.partitions = metrics.partitions.labels(pipeline)
        self.rebalances = metrics.rebalances.labels(pipeline)
        self.commits_ok = metrics.commits.labels(pipeline, "ok")
        self.commits_failed = metrics.commits.labels(pipeline, "failed")

    def poll_error(self, error: BaseException) -> None:
        self._metrics.poll_errors.labels(self._pipeline, type(error).__name__).inc()

    def odd_deadline(self, oddity: str) -> None:
        self._metrics.odd_deadlines.labels(self._pipeline, oddity).inc()
