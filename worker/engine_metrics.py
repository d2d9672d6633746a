"""What the engine's lanes tell of themselves: as Prometheus metrics, read when scraped, and at load as a line
in the log."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.runtime.load_report import LoadReport
from engine.store import ArtifactStore

MEGABYTE = 1e6


class EngineMetrics(Collector):
    """Register it in the worker's registry; asked on any thread. Artifacts appear once they are loaded."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    def collect(self) -> Iterator[Metric]:
        label = ("artifact",)
        fallbacks = CounterMetricFamily(
            "boundgen_engine_fallbacks", "Launches that were not wholly captured in a graph", labels=label
        )
        launches = CounterMetricFamily("boundgen_engine_launches", "Launches of graphs", labels=label)
        python = CounterMetricFamily(
            "boundgen_engine_launch_python_seconds",
            "Processor time of Python's part of launches, when it holds the interpreter",
            labels=label,
        )
        seconds = GaugeMetricFamily("boundgen_engine_load_seconds", "What loading took", labels=label)
        graphs = GaugeMetricFamily("boundgen_engine_graphs", "Graphs captured at load", labels=label)
        held = GaugeMetricFamily(
            "boundgen_engine_bytes", "Memory taken at load, by what holds it", labels=("artifact", "holder")
        )
        missed = self._artifacts.fallbacks
        loads = self._artifacts.load_reports
        for name, lanes in self._artifacts.opened.items():
            if name not in loads:  # loaded since
                continue
            load, launch = loads[name], lanes.launch_report
            fallbacks.add_metric((name,), missed.get(name, 0))
            launches.add_metric((name,), launch.launches)
            python.add_metric((name,), launch.launches * launch.python_mean_ms / 1e3)
            seconds.add_metric((name,), load.seconds)
            graphs.add_metric((name,), load.graphs)
            held.add_metric((name, "weights"), load.weights_bytes)
            held.add_metric((name, "lanes"), sum(load.lane_bytes))
        yield from (fallbacks, launches, python, seconds, graphs, held)


def loading(report: LoadReport) -> dict[str, object]:
    """Fields of the log line; lanes_mb and what follows only where graphs were captured."""
    told: dict[str, object] = {
        "seconds": round(report.seconds, 1),
        "weights_mb": round(report.weights_bytes / MEGABYTE, 1),
    }
    if report.graphs:
        told["graphs"] = report.graphs
        told["lanes_mb"] = [round(each / MEGABYTE, 1) for each in report.lane_bytes]
    if report.sharing:
        told["half_chip_tokens"] = list(report.shared_tokens)
    return told
