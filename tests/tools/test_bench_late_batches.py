"""Both ways of forming batches answer all requests, in front of a model that acts a device out."""

from __future__ import annotations

import json
import time

import pytest

from engine.pipeline import Answer, ArtifactStore, Pipeline, PipelineConfig
from schemas.messages import Sample
from tools.bench.late_batches import Arrivals, main
from tools.bench.overhead_run import SLEEPER


def test_both_ways_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--sleep-ms", "5", "--share", "0.02", "--seconds", "0.5", "--rounds", "1"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0] == "64 requests/s, 5 ms a batch of at most 16:"
    assert lines[-1].startswith("mean latency, one ahead / at its turn: ")
    found = json.loads(last)
    assert min(found[way]["mean_ms"] for way in ("one ahead", "at its turn")) > 5


def test_arrivals_come_at_their_rate_and_are_the_same_for_both() -> None:
    arrivals = Arrivals(sleep_ms=16.0, share=0.5, seconds=20.0)
    assert arrivals.rate == 500
    times = arrivals.times(1)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert times == sorted(times) == arrivals.times(1)


def test_a_batch_on_the_acted_device_begins_when_the_one_before_it_ends() -> None:
    nodes = {
        "given": {"kind": "tools.bench.late_batches:Given"},
        "model": {"kind": SLEEPER, "inputs": ["given"], "milliseconds": 60, "turns": True},
        "answer": {"kind": "encoder", "inputs": ["model"], "output": "softmax"},
    }
    bounds = {"samples": 2, "tokens_per_sample": 4, "tokens_per_request": 8}
    config = PipelineConfig.model_validate({"name": "sleep", "bounds": bounds, "nodes": nodes})
    turns: list[float] = []
    with Pipeline.open(config, ArtifactStore({})) as pipeline:
        assert pipeline.capacity.batches == 1
        pipeline.tell_turns_sooner(0.05)
        batches = [[pipeline.prepare([Sample(token_ids=(1,))])] for _ in range(2)]
        started = time.perf_counter()
        jobs = [pipeline.submit(batch, lambda: turns.append(time.perf_counter())) for batch in batches]
        (answer,) = jobs[1].result(20)
        assert time.perf_counter() - started >= 0.12
    assert isinstance(answer, Answer)
    assert answer.gpu_ms >= 60
    assert len(turns) == 2
