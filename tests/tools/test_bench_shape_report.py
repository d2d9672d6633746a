"""`bench engine --shape`: the whole report, acted out on a CPU, and measured on a device."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.artifact import Artifact
from engine.packed import BatchBounds, PackedBatch
from engine.runtime.buckets import make_buckets
from engine.runtime.cost import CostModel
from engine.runtime.graph_lanes import LoadReport
from engine.runtime.lanes import LanePool
from engine.runtime.launches import LaunchReport
from engine.runtime.sharing import SharedCost
from tools.bench import shape_engine
from tools.bench.card import Replay, Timing
from tools.bench.card_state import CardState
from tools.bench.mixes import Mix, draw_mixes
from tools.bench.peaks import Peaks
from tools.bench.shape_engine import bench_shape
from tools.bench.shape_run import measure
from tools.bench.shape_setup import ShapeSetup
from tools.errors import UserError


class ActedPool:
    """A CPU pool with what a pool of graphs has beside: its graphs are plain runs."""

    load_report = LoadReport(
        1.5, 12, 2_000_000_000, (500_000_000, 600_000_000), (64, 256), (SharedCost(64, 0.4, 0.4, 0.3),)
    )
    launch_report = LaunchReport(7, 0.03, 0.2)
    fallbacks = 0
    cost = CostModel(make_buckets(BatchBounds(16, 64, 64)), ((64, 1.0),))

    def __init__(self, pool: LanePool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def hold(self, packed: PackedBatch, shared: bool = False) -> Replay:
        def replay() -> None:
            self._pool.executor.submit(self._pool.forward, packed).result()

        return replay


class ActedCard:
    """Counts on the clock, and says what a card would."""

    name, peaks = "acted", Peaks(2e12, 4e12, 1e12)

    def ceilings(self) -> Mapping[str, float]:
        return {"copy_tbps": 4.0, "gemm_bf16_tflops": 600.0}

    def time(self, replay: Replay, seconds: float) -> Timing:
        began = time.perf_counter()
        replay()
        spent = 1e3 * (time.perf_counter() - began)
        return Timing(spent, spent, CardState(1700.0, None))

    def time_together(self, replays: Sequence[Replay], seconds: float) -> Timing:
        assert len(replays) == 2
        return dataclasses.replace(
            self.time(lambda: [replay() for replay in replays] and None, seconds), burst_ms=None
        )

    def kernel_times(self, replay: Replay) -> Mapping[str, float] | None:
        return {"void boundgen::chain_kernel<256>": 30.0, "void boundgen::attention_kernel<128>": 10.0}


@pytest.fixture
def acted(
    tiny_causal: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[ShapeSetup, list[str]], dict[str, Any]]:
    """Measures the tiny model's artifact, four samples a request."""

    def few(vocab_size: int) -> dict[str, Mix]:
        return {
            name: dataclasses.replace(mix, requests=[request[:4] for request in mix.requests[:8]])
            for name, mix in draw_mixes(vocab_size).items()
        }

    monkeypatch.setattr("tools.bench.shape_run.draw_mixes", few)

    def run(setup: ShapeSetup, lines: list[str]) -> dict[str, Any]:
        artifact = Artifact.open(tiny_causal.artifact)
        pool = ActedPool(artifact.open_lanes(setup.lanes))
        try:
            return measure(setup, artifact, pool, ActedCard(), lambda _: None, lines.append)  # type: ignore[arg-type]
        finally:
            pool.close()

    return run


def test_the_report_acted_out(acted: Any) -> None:
    lines: list[str] = []
    setup = ShapeSetup("qwen3-0.6b", "bf16", tokens=(256,), in_flight=(1, 2), seconds=0.2)
    found = json.loads(json.dumps(acted(setup, lines)))
    assert found["check"]["repeat_equal"]
    assert [(row["lengths"], row["lanes"]) for row in found["buckets"]] == [
        ("mixed", 1), ("mixed", 2), ("128", 1), ("128", 2)
    ]  # fmt: skip
    one, two = found["buckets"][2:]
    assert one["samples"] == 2
    assert one["tokens_per_s"] == pytest.approx(256e3 / one["sustained_ms"])
    assert two["tokens_per_s"] == pytest.approx(2 * 256e3 / two["sustained_ms"])
    assert one["mfu_bf16"] == pytest.approx(one["tflops"] / 2)
    assert one["mfu_weighted"] == pytest.approx(one["floor_ms"] / one["sustained_ms"])
    assert (one["halved"], two["halved"]) == (False, True)
    assert (one["sm_mhz"], one["watts"]) == (1700, None)
    assert [row["mix"] for row in found["loops"][::2]] == list(setup.mixes)
    saved = {row["mix"]: row["saved_share"] for row in found["loops"]}
    assert saved["mean150"] == saved["mean60"] == 0
    assert saved["shared64of150"] == pytest.approx(3 * 64 / 600)
    assert saved["constant40of150"] == pytest.approx(40 / 150)
    assert all(row["requests_per_s"] > 0 and row["p99_ms"] >= row["mean_ms"] / 2 for row in found["loops"])
    assert set(found["best"]) == set(setup.mixes)
    assert found["kernel_shares"][0]["shares"]["gemm"] == 0.75
    assert found["commit"]
    assert found["cost"] == [[64, 1.0]]
    for start in ("kernels: ", "physics: 27 samples, 4050 tokens", "floor: ",
                  "ceilings, sustained: copy 4.00",
                  "load: 1.5 s, 12 graphs, weights 2.00 GB shared by all lanes, lane by lane 0.50, 0.60 GB",
                  "T=256 mixed: burst ", "T=256 128: two lanes, half the chip each, sustained",
                  "mean60, 2 in flight: ",
                  "T=256 128: kernels gemm 75%, attention 25%"):  # fmt: skip
        assert any(line.startswith(start) for line in lines), start


def test_the_module_runs_where_only_the_engine_is_installed(
    acted: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    setups: list[ShapeSetup] = []

    def bench(setup: ShapeSetup, stage: object, line: object) -> dict[str, Any]:
        setups.append(setup)
        return acted(setup, [])

    monkeypatch.setattr(shape_engine, "bench_shape", bench)
    chart = tmp_path / "loops.svg"
    options = [
        "--shape",
        "smollm2-135m",
        "--precision",
        "bf16",
        "--lanes",
        "1",
        "--tokens",
        "64",
        "--no-classes",
    ]
    options += ["--lengths", "128", "--mixes", "mean60", "--in-flight", "1,3", "--seconds", "0.1"]
    shape_engine.main([*options, "--chart", str(chart)])
    assert setups == [
        ShapeSetup(
            "smollm2-135m", "bf16", "fastest", 1, (64,), ("128",), ("mean60",), (1, 3), 0.1, classes=False
        )
    ]
    result = tmp_path / "result.txt"
    result.write_text("words before it\n" + capsys.readouterr().out)
    drawn = chart.read_bytes()
    chart.unlink()
    shape_engine.main(["--from", str(result), "--chart", str(chart)])
    assert chart.read_bytes() == drawn
    with pytest.raises(UserError, match="--from: without --chart"):
        shape_engine.main(["--from", str(result)])


@pytest.mark.gpu
@pytest.mark.slow
def test_a_shape_is_measured_through_its_artifact() -> None:
    lines: list[str] = []
    setup = ShapeSetup("smollm2-135m", "fp8", tokens=(1024,), in_flight=(4,), seconds=0.5)
    found = bench_shape(setup, lambda _: None, lines.append)
    assert found["check"]["repeat_equal"]
    assert found["check"]["finite"]
    assert found["buckets"][0]["tflops"] > 0
    assert found["fallbacks"] == 0
    assert found["kernel_shares"][0]["shares"]["gemm"] > 0.3
    assert {row["lanes"] for row in found["buckets"]} == {1, 2}
    assert any(line.startswith("kernels: ") for line in lines)
