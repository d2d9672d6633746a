"""What the nodes of this worker's pipelines count themselves, as Prometheus metrics: read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.pipeline import Pipeline


class NodeMetrics(Collector):
    """Register it in the worker's registry. `pipelines`: those that are open now; asked on any thread."""

    def __init__(self, pipelines: Callable[[], Sequence[Pipeline]]) -> None:
        self._pipelines = pipelines

    def collect(self) -> Iterator[Metric]:
        text = "Events that a node counts: items_swapped, items_refused, ..."
        events = CounterMetricFamily("boundgen_node_events", text, labels=("pipeline", "node", "event"))
        for pipeline in self._pipelines():
            for node, counts in pipeline.counters().items():
                for event, count in counts.items():
                    events.add_metric((pipeline.name, node, event), count)
        yield events
