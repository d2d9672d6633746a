"""What a node counts itself comes out of the registry with its pipeline's and its own name."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from engine.graph import Node
from engine.pipeline import ArtifactStore, Pipeline, PipelineConfig
from engine.values import Rows, Samples
from worker.node_metrics import NodeMetrics


class Counting(Node):
    consumes = (Samples,)
    produces = Rows
    runs = 0

    def run(self, requests: Any) -> Any:
        self.runs += len(requests)
        return [Rows(({},)) for _ in requests]

    def counters(self) -> dict[str, int]:
        return {"runs": self.runs}


def test_counters_of_open_pipelines_are_read_when_asked() -> None:
    config = PipelineConfig.model_validate(
        {
            "name": "p",
            "bounds": {"samples": 1, "tokens_per_sample": 1, "tokens_per_request": 1},
            "nodes": {"count": {"kind": f"{__name__}:Counting", "inputs": ["request"]}},
        }
    )
    opened: list[Pipeline] = []
    registry = CollectorRegistry()
    registry.register(NodeMetrics(lambda: opened))
    assert b"boundgen_node_events_total{" not in generate_latest(registry)
    with Pipeline.open(config, ArtifactStore({})) as pipeline:
        opened.append(pipeline)
        pipeline.submit([pipeline.prepare([object()])]).result(10)  # type: ignore[list-item]
        line = b'boundgen_node_events_total{event="runs",node="count",pipeline="p"} 1.0'
        assert line in generate_latest(registry)
