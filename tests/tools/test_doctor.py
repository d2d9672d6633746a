"""doctor: every finding says how to mend it, whatever is dead; good servers give no failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from engine.errors import ArtifactError
from engine.store import ArtifactStore
from schemas.deadletter import dead_letter_topic
from tools.cli import app
from tools.demo.topics import create_topics
from tools.doctor.broker import Stream, check_broker
from tools.doctor.findings import Finding, Level
from tools.doctor.machine import check_compiler, check_cuda, check_packages, check_python, check_room
from tools.doctor.redis_server import check_redis, judge
from tools.doctor.serving import check_serving
from tools.processes import free_ports
from worker.config import read_worker_config
from worker.settings import KafkaSettings

NOBODY = f"127.0.0.1:{free_ports(1)[0]}"


def levels(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.check, each.level.value) for each in findings]


def write_config(folder: Path, **sections: Any) -> Path:
    path = folder / "worker.yaml"
    path.write_text(yaml.safe_dump({"pipelines": [{"config": "pipeline.yaml"}]} | sections))
    return path


async def test_a_broker_that_is_not_there_fails_with_a_mend():
    (found,) = await check_broker(KafkaSettings(bootstrap_servers=NOBODY), [], [])
    assert found.level is Level.FAIL
    assert NOBODY in found.detail
    assert "kafka.bootstrap_servers" in found.mend


async def test_a_broker_that_swallows_everything_is_given_up(kafka_proxy):
    kafka_proxy.set_mode("swallow")
    (found,) = await check_broker(KafkaSettings(bootstrap_servers=kafka_proxy.address), [], [])
    assert found.level is Level.FAIL
    assert "no answer in" in found.detail


async def test_topics_and_lag_of_a_good_broker(kafka, topics):
    topic = await topics(partitions=2)
    settings = KafkaSettings(bootstrap_servers=kafka)
    stream = Stream("relevance", topic, f"{topic}.group")
    found = await check_broker(settings, [stream], ["no.such.replies"])
    assert levels(found) == [
        ("broker", "ok"),
        ("topic", "ok"),
        ("topic", "fail"),
        ("topic", "fail"),
        ("lag", "ok"),
    ]
    assert "2 partitions" in found[1].detail
    assert dead_letter_topic(topic) in found[2].mend
    assert "no.such.replies" in found[3].detail
    assert "committed nothing" in found[4].detail
    await create_topics(kafka, {dead_letter_topic(topic): 2})
    found = await check_broker(settings, [stream], [topic])
    assert {each.level for each in found} == {Level.OK}


async def test_missing_topics_are_fine_where_the_worker_creates_them(kafka):
    settings = KafkaSettings(bootstrap_servers=kafka, create_topics=True)
    found = await check_broker(settings, [Stream("x", "test.never.made", "g")], [])
    assert {each.level for each in found} == {Level.OK}


async def test_redis_good_dead_silent_and_off(redis_url, redis_proxy):
    assert (await check_redis(redis_url))[0].level is Level.OK
    assert (await check_redis(None))[0].level is Level.OK
    (dead,) = await check_redis(f"redis://:secret@{NOBODY}/0")
    assert dead.level is Level.FAIL
    assert "secret" not in dead.detail
    redis_proxy.set_mode("swallow")
    (silent,) = await check_redis(f"redis://{redis_proxy.address}/0")
    assert silent.level is Level.FAIL
    assert "redis.url" in silent.mend


def test_a_clock_that_is_off_and_a_server_far_away_are_warnings():
    assert levels(judge("r", 0.0, 0.001)) == [("redis", "ok")]
    found = judge("r", -600.0, 0.020)
    assert levels(found) == [("redis", "ok"), ("redis clock", "warn"), ("redis distance", "warn")]
    assert "-600000 ms" in found[1].detail


def test_this_machine_can_run_boundgen():
    found = [
        *check_python(),
        *check_packages(),
        *check_compiler(),
        *check_cuda(None),
        *check_room(Path.cwd()),
    ]
    assert not [each for each in found if each.level is Level.FAIL]


def test_cuda_that_is_wanted_and_not_there_fails():
    import torch

    (found, *_) = check_cuda("cuda")
    assert found.level is (Level.OK if torch.cuda.is_available() else Level.FAIL)


def test_artifacts_and_pipelines_that_do_not_load_fail(tmp_path: Path):
    (tmp_path / "pipeline.yaml").write_text("name: x\nbounds: {samples: 1}\nnodes: {}\n")
    config = write_config(tmp_path, engine={"artifacts": {"small": str(tmp_path / "nothing")}})
    found = list(check_serving(read_worker_config(config)))
    assert [(each.check, each.level.value) for each in found if each.check != "threads"] == [
        ("artifact", "fail"),
        ("pipeline", "fail"),
    ]
    assert "boundgen build" in found[1].mend
    assert "bounds" in found[2].detail


def write_pipeline(folder: Path, name: str, *, artifact: str = "tiny") -> None:
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\n"
        "bounds: {samples: 4, tokens_per_sample: 64, tokens_per_request: 256}\n"
        "nodes:\n"
        f"  prompt: {{kind: tokenizer, artifact: {artifact}}}\n"
        f"  model: {{kind: prefill, artifact: {artifact}, inputs: [prompt], head: embedding}}\n"
        "  answer: {kind: encoder, inputs: [model]}\n"
    )


def test_an_artifact_that_does_not_load_is_told_once_with_its_pipelines(tmp_path: Path, tiny_causal):
    pipelines = {"one": "broken", "two": "broken", "three": "tiny", "four": "unknown"}
    for name, artifact in pipelines.items():
        write_pipeline(tmp_path, name, artifact=artifact)
    paths = {"broken": tmp_path / "nothing", "idle": tmp_path / "none", "tiny": tiny_causal.artifact}
    config = write_config(
        tmp_path,
        pipelines=[{"config": f"{name}.yaml"} for name in pipelines],
        engine={"artifacts": {name: str(path) for name, path in paths.items()}, "threads": 1},
    )
    found = list(check_serving(read_worker_config(config)))[1:]
    assert levels(found) == [
        ("artifact", "fail"),
        ("artifact", "fail"),
        ("artifact", "ok"),
        ("pipeline", "ok"),
        ("pipeline", "fail"),
    ]
    assert sum(str(paths["broken"]) in each.detail for each in found) == 1
    assert found[0].detail.endswith("; pipelines that need it: one, two")
    assert found[1].detail.endswith("; no pipeline needs it")
    assert "unknown" in found[4].detail


def test_what_several_pipelines_lack_of_an_artifact_is_told_once(tmp_path: Path, tiny_causal, monkeypatch):
    def broken(self: Any, name: str) -> Any:
        raise ArtifactError(f"artifact {name!r}: its searches cannot be opened")

    monkeypatch.setattr(ArtifactStore, "get_beams", broken)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\n"
            "bounds: {samples: 1, tokens_per_sample: 64, tokens_per_request: 64}\n"
            "nodes:\n"
            "  prompt: {kind: tokenizer, artifact: tiny}\n"
            "  found: {kind: beam, artifact: tiny, inputs: [prompt], width: 2, steps: 1}\n"
        )
    config = write_config(
        tmp_path,
        pipelines=[{"config": "one.yaml"}, {"config": "two.yaml"}],
        engine={"artifacts": {"tiny": str(tiny_causal.artifact)}, "threads": 1},
    )
    found = list(check_serving(read_worker_config(config)))[2:]
    assert levels(found) == [("pipeline", "fail")]
    assert found[0].detail == "one, two: artifact 'tiny': its searches cannot be opened"


def test_a_good_artifact_is_described(tmp_path: Path, tiny_causal):
    write_pipeline(tmp_path, "pipeline")
    config = write_config(tmp_path, engine={"artifacts": {"tiny": str(tiny_causal.artifact)}, "threads": 1})
    found = list(check_serving(read_worker_config(config)))
    assert {each.level for each in found} == {Level.OK}
    assert "digests match" in found[1].detail


def test_the_command_ends_with_json_and_status_1(tmp_path: Path):
    config = write_config(tmp_path, kafka={"bootstrap_servers": NOBODY}, redis={"url": None})
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", str(config), "--json"])
    assert result.exit_code == 1
    told = json.loads(result.output.splitlines()[-1])
    assert told["fail"] >= 2
    assert all(each["mend"] for each in told["findings"] if each["level"] != "ok")
    assert {"broker", "redis", "pipeline"} <= {each["check"] for each in told["findings"]}


def test_a_wrong_configuration_is_a_finding_too(tmp_path: Path):
    config = write_config(tmp_path, http={"port": "x"})
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", str(config)])
    assert result.exit_code == 1
    assert "http.port" in result.output
