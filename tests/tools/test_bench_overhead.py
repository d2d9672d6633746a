"""`bench overhead`: a sleeping model in a real worker beside an echo, and parts that add up to the mean."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.pipeline import ArtifactStore, Pipeline, read_pipeline
from schemas.messages import Outcome, Reply, Sample, Timing
from tools.bench.open_loop import Timed
from tools.bench.overhead_report import Latency, parts, report_lines
from tools.bench.overhead_run import Load, Servers, worker_settings, write_pipeline
from tools.cli import app
from tools.commands.bench_overhead import compare, kafka_home, numbers
from tools.errors import UserError
from tools.steps import Steps


def timed(latency_ms: float, late_ms: float = 0.5) -> Timed:
    timing = Timing(queue_ms=2, tokenize_ms=1, gpu_ms=5.5, total_ms=9)
    return Timed(Reply(id="x", outcome=Outcome.OK, timing=timing), latency_ms, late_ms)


def test_parts_add_up_and_the_largest_is_named():
    every = [timed(12.0), timed(14.0)]
    found = parts(every, sleep_ms=5)
    assert sum(found.values()) == pytest.approx(statistics.fmean(each.latency_ms for each in every))
    assert found == pytest.approx(
        {
            "sender late": 0.5,
            "kafka and client": 3.5,
            "tokenize": 1.0,
            "queue": 2.0,
            "sleep": 5.0,
            "model call": 0.5,
            "encode": 0.5,
        }
    )
    lines = report_lines(Latency(13, 13, 14), Latency(3, 3, 4), found, 5, 200)
    assert lines[-1] == "what dominates: kafka and client (3.50 of 8.00 ms)"


def test_the_sleeping_model_answers_every_sample(tmp_path: Path, tiny_causal):
    load = Load(rate=1, seconds=1, sleep_ms=1, lanes=2)
    config = read_pipeline(write_pipeline(tmp_path, load))
    store = ArtifactStore({"smollm2": tiny_causal.artifact})
    with Pipeline.open(config, store) as pipeline:
        assert pipeline.capacity.batches == 2
        samples = [Sample(fields={"query": "mouse", "title": title}) for title in ("mouse", "laptop")]
        (answer,) = pipeline.submit([pipeline.prepare(samples)]).result()
    store.close()
    assert [row["scores"] for row in answer.rows] == [{"yes": 0.5, "no": 0.5}] * 2
    assert answer.gpu_ms >= 1


async def test_a_worker_and_an_echo_are_measured(tmp_path: Path, kafka, redis_url, tiny_causal, monkeypatch):
    import asyncio

    from tools.bench import overhead_run

    monkeypatch.setattr(overhead_run, "WARM_UP_SECONDS", 0.2)
    servers = Servers(kafka, redis_url, 500)
    load = Load(rate=20, seconds=0.5, sleep_ms=5, lanes=2)
    echo, worker = await asyncio.to_thread(compare, servers, load, tiny_causal.artifact, tmp_path, Steps())
    assert len(echo.timed) == len(worker.timed) == 10
    assert worker.latency.mean > 5
    found = parts(worker.timed, load.sleep_ms)
    assert sum(found.values()) == pytest.approx(worker.latency.mean)
    line = numbers(worker, echo, found, load.sleep_ms)
    assert line["mean_minus_sleep_ms"] == pytest.approx(worker.latency.mean - 5, abs=0.01)
    assert worker.cpu_ms is None or worker.cpu_ms > 0


def test_settings_are_a_valid_configuration(tmp_path: Path):
    import yaml

    from worker.config import read_worker_config

    settings = worker_settings(Servers("b:9092", None, 5), tmp_path / "p", tmp_path / "a", "t", "r")
    path = tmp_path / "worker.yaml"
    path.write_text(yaml.safe_dump(settings))
    assert read_worker_config(path).kafka.fetch_max_wait_ms == 5


def test_without_a_broker_it_says_what_to_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    with pytest.raises(UserError, match="--bootstrap-servers"):
        kafka_home()
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"kafka-server-start\.sh"):
        kafka_home()


def test_a_missing_broker_is_said_before_a_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(**options: object) -> Path:
        raise AssertionError("a model was fetched first")

    monkeypatch.setattr("tools.commands.bench_overhead.smollm2_gguf", fetched)
    monkeypatch.setenv("KAFKA_HOME", "/nowhere")
    result = CliRunner().invoke(app, ["bench", "overhead"])
    assert result.exit_code == 2
    assert "KAFKA_HOME = '/nowhere': there is no bin/kafka-server-start.sh" in result.output
