"""What lanes tell of their load and their launches, in the registry and in the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine.runtime.launches import LaunchMeter, LaunchReport, report
from engine.runtime.load_report import LoadReport
from engine.runtime.sharing import SharedCost
from worker.engine_metrics import EngineMetrics, loading

GRAPHS = LoadReport(
    12.34, 500, 1_200_000_000, (300_000_000, 310_000_000), (64, 96), (SharedCost(64, 1, 1, 0.6),)
)


def test_lanes_appear_with_their_artifact_once_it_is_loaded() -> None:
    artifacts: Any = SimpleNamespace(opened={}, fallbacks={}, load_reports={})
    registry = CollectorRegistry()
    registry.register(EngineMetrics(artifacts))

    def read(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"boundgen_engine_{name}", {"artifact": "qwen", **labels})

    assert read("fallbacks_total") is None
    artifacts.opened["qwen"] = SimpleNamespace(launch_report=LaunchReport(1_000, 0.05, 0.3))
    artifacts.load_reports["qwen"] = GRAPHS
    artifacts.fallbacks["qwen"] = 3
    assert read("fallbacks_total") == 3
    assert read("launches_total") == 1_000
    assert read("launch_python_seconds_total") == pytest.approx(0.05)
    assert read("load_seconds") == 12.34
    assert read("graphs") == 500
    assert read("bytes", holder="weights") == 1_200_000_000
    assert read("bytes", holder="lanes") == 610_000_000


def test_the_line_in_the_log() -> None:
    assert loading(GRAPHS) == {
        "seconds": 12.3, "weights_mb": 1200.0, "graphs": 500, "lanes_mb": [300.0, 310.0],
        "half_chip_tokens": [64, 96],
    }  # fmt: skip
    assert loading(LoadReport(0.44, 0, 98_000_000, ())) == {"seconds": 0.4, "weights_mb": 98.0}


def test_launches_of_several_lanes_together() -> None:
    meters = [LaunchMeter(), LaunchMeter(), LaunchMeter()]
    for meter, times in zip(meters, ([0.001, 0.003], [0.002], []), strict=True):
        for seconds in times:
            meter.note(seconds)
    found = report(meters)
    assert (found.launches, found.python_mean_ms, found.python_max_ms) == pytest.approx((3, 2.0, 3.0))
    assert report([]) == LaunchReport(0, 0.0, 0.0)
