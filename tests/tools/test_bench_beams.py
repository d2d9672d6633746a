"""`bench engine --pipeline beam`: the report acted out on a CPU, what counts as work, what is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from engine.artifact import Artifact
from engine.models.architecture import Architecture
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.legal_slots import LegalSlots
from tools.bench import beam_loops
from tools.bench.beam_engine import BeamSetup, bench_beams, make_setup
from tools.bench.beam_loops import Lanes, Load, best_rate, run_closed, run_poisson
from tools.bench.beam_run import BeamLoads, Searched, measure
from tools.bench.beam_work import count_flops
from tools.bench.card import Replay, Timing
from tools.bench.card_state import CardState
from tools.bench.peaks import Peaks
from tools.bench.shapes import SHAPES
from tools.errors import UserError


class ActedBeams:
    """Searches on a CPU, with what captured ones have beside: graphs are plain runs."""

    num_graphs = fallbacks = 0

    def __init__(self, beams: BeamLanes) -> None:
        self.pool, self.search, self.begin = beams.pool, beams.search, beams.begin
        self.prepared: list[tuple[Any, ...]] = []

    def prepare(self, *given: Any) -> None:
        self.prepared.append(given)

    def make_slots(self) -> LegalSlots:
        return LegalSlots(torch.device("cpu"), lambda slots, slot: None)

    def hold(self, *given: Any) -> Replay:
        def replay() -> None:
            self.pool.executor.submit(self.search, *given).result()

        return replay


class ActedCard:
    name, peaks = "acted", Peaks(2e12, 4e12, 1e12)

    def time(self, replay: Replay, seconds: float) -> Timing:
        began = time.perf_counter()
        replay()
        spent = 1e3 * (time.perf_counter() - began)
        return Timing(spent, spent, CardState(1700.0, None))

    def kernel_times(self, replay: Replay) -> Mapping[str, float] | None:
        replay()
        return {"nvjet_gemm": 60.0, "_beam_attention_3": 30.0, "candidates": 5.0, "chunk_maxima": 5.0}


def test_the_report(tiny_beam: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tools.bench.beam_run.draw_prompts", lambda mix, vocab_size: [[3, 5, 7 + n] for n in range(9)]
    )
    artifact, lines = Artifact.open(tiny_beam.artifact), list[str]()
    a = Architecture.from_manifest(artifact.manifest.architecture)
    pool = artifact.open_lanes(1)
    beams = ActedBeams(artifact.open_beams(pool))
    loads = BeamLoads(5, 2, 4, ("short",), (1, 3), (1, 3), 0.3, 0.1, items=400)
    found = measure(Searched(beams, a, False), loads, ActedCard(), lambda _: None, lines.append)  # type: ignore[arg-type]
    pool.close()

    short = found["mixes"]["short"]
    assert short["check"]["repeat_equal"]
    assert short["check"]["alone_max_difference"] < 1e-3
    assert [row["rows"] for row in short["graphs"]] == [5, 15]
    assert all(0 < row["mfu_weighted"] == row["mfu_bf16"] for row in short["graphs"])
    assert [row["offered"] for row in short["closed"]] == [1, 3]
    assert short["best_poisson"]["mean_ms"] < 20 or short["best_poisson"] is None
    assert short["kernels"][0]["shares"]["select"] == pytest.approx(0.1)
    assert found["items"]["illegal"] == 0
    assert found["items"]["bytes"] > 400 * 4
    assert any(line.startswith("short: 3 in flight: ") for line in lines)
    json.dumps(found)


def make_lanes(sizes: list[int], most: int = 3) -> Lanes:
    """One lane: batches are computed one after the other, a millisecond each, results half a one later."""

    def begin(prompts: Sequence[list[int]]) -> Callable[[], None]:
        sizes.append(len(prompts))
        time.sleep(0.001)
        return lambda: time.sleep(0.0005)

    return Lanes(ThreadPoolExecutor(1), ThreadPoolExecutor(1), begin, 1, most)


def test_a_closed_loop_keeps_its_requests_in_flight() -> None:
    sizes: list[int] = []
    load = run_closed(make_lanes(sizes), [[1], [2]], 4, seconds=0.2)
    assert max(sizes) == 3
    assert load.mean_ms >= 1.5
    assert load.p99_ms >= load.mean_ms
    assert load.batch <= 3


def test_random_arrivals_are_all_answered() -> None:
    sizes: list[int] = []
    load = run_poisson(make_lanes(sizes, 50), [[1], [2]], 500.0, seconds=0.4)
    assert load.offered == 500
    assert load.mean_ms >= 1.5
    assert 100 < sum(sizes) < 300


def test_an_error_of_a_batch_ends_a_loop() -> None:
    lanes = make_lanes([])

    def fail(_: Sequence[list[int]]) -> Callable[[], None]:
        raise ValueError("acted")

    for begin in (fail, lambda _: lambda: fail([])):
        with pytest.raises(ValueError, match="acted"):
            run_closed(dataclasses.replace(lanes, begin=begin), [[1]], 2, seconds=0.01)


@pytest.mark.parametrize("first", [120.0, 180.0, 300.0, 3000.0])
def test_the_best_rate_is_found_from_either_side(first: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A latency that grows with the rate, 20 ms at 200 a second."""

    def acted(_: object, __: object, rate: float, **___: object) -> Load:
        return Load(rate, rate, rate / 10, rate / 5, 1.0)

    monkeypatch.setattr(beam_loops, "run_poisson", acted)
    loads = best_rate(make_lanes([]), [], first, seconds=0.0, mean_ms=20.0)
    best = max(each.offered for each in loads if each.mean_ms <= 20)
    assert 200 / 1.05 <= best <= 200
    assert [each.mean_ms > 20 for each in loads[:-1]] == [first > 200] * (len(loads) - 1)


def test_work_is_that_of_the_formula() -> None:
    a = SHAPES["qwen2.5-0.5b"]
    layer = a.hidden_size * (2 * a.q_width + 2 * a.kv_width + 3 * a.intermediate_size)
    total, fp8 = count_flops(a, [60] * 8, 100, 4, {}, False)
    rows = 8 * (60 + 400)
    matrices = 2 * a.num_layers * layer * rows + 2 * a.hidden_size * a.vocab_size * 8 * 401
    assert fp8 == 0
    assert matrices < total < 1.02 * matrices + 2 * layer * 8 * 60
    _, fp8 = count_flops(a, [60] * 8, 100, 4, {"gate_up": 1.0, "down": 1.0}, True)
    assert 0.5 < fp8 / total < 0.95


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, said in (
        ({"shape": "gpt-2"}, "--shape = 'gpt-2': must be one of qwen2"),
        ({"precision": "auto"}, "--precision = 'auto': must be one of bf16, fp8, int8"),
        ({"mixes": ("mean9",)}, "--mixes = 'mean9': must be one of short, long"),
        ({"requests": (33,)}, "--requests = 33: over --prompts = 32"),
        ({"in_flight": (0,)}, "--in-flight = '0': must be positive numbers"),
    ):
        with pytest.raises(UserError, match=said):
            make_setup({"shape": "qwen3-0.6b", "precision": "fp8"} | options)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        bench_beams(BeamSetup("qwen3-0.6b", "fp8"), lambda _: None, lambda _: None)


def test_what_it_imports_is_the_engine_alone() -> None:
    code = (
        "import sys, tools.bench.beam_engine; "
        "print({'typer', 'rich', 'aiokafka', 'redis', 'prometheus_client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
