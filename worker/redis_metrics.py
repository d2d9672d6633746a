"""What the deadline store counts, as Prometheus metrics: read when scraped, at no cost to a request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from worker.redis_deadlines import DeadlineStore


class RedisMetrics(Collector):
    """Register it in the worker's registry."""

    def __init__(self, store: DeadlineStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        store, line, clock = self._store.counters, self._store.line_counters, self._store.clock
        counts = (
            ("lookups", "Requests looked up in Redis", store.ids),
            ("found", "Deadlines and cancellations found there", store.found),
            ("garbage", "Values there that are neither", store.garbage),
            (
                "failed_open",
                "Requests that kept their message's deadline for want of an answer",
                store.failed_open,
            ),
            ("questions", "Round trips", line.questions),
            (
                "timeouts",
                "Round trips over redis.timeout_ms; each closes the line for redis.retry_ms",
                line.timeouts,
            ),
            ("errors", "Round trips and connects that failed", line.errors),
            ("connects", "Connections made", line.connects),
            ("clock_steps", "Times that Redis' clock was set anew", clock.steps),
        )
        for name, text, value in counts:
            yield CounterMetricFamily(f"boundgen_redis_{name}", text, value=value)
        available = float(self._store.available)
        yield GaugeMetricFamily("boundgen_redis_available", "1: lookups are sent to Redis", value=available)
        yield GaugeMetricFamily(
            "boundgen_redis_clock_offset_ms",
            "Redis' clock minus the worker's timeline",
            value=clock.offset_ms,
        )
