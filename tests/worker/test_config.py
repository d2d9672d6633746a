"""The configuration file, the environment over it, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from worker.config import WorkerConfig, WorkerConfigError, read_worker_config
from worker.settings import KafkaSettings, PipelineSettings

ANNOTATED = Path(__file__).parents[2] / "configs" / "worker.yaml"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "worker.yaml"
        path.write_text(text)
        return path

    return write


def problems(path: Path) -> str:
    with pytest.raises(WorkerConfigError) as caught:
        read_worker_config(path)
    return str(caught.value)


def as_written(model: BaseModel) -> dict[str, Any]:
    """A section as YAML would have it."""
    values: dict[str, Any] = {}
    for key, value in model:
        if isinstance(value, BaseModel):
            values[key] = as_written(value)
        elif isinstance(value, SecretStr):
            values[key] = value.get_secret_value()
        else:
            values[key] = list(value) if isinstance(value, tuple) else value
    return values


def test_the_annotated_file_lists_every_setting_with_its_default() -> None:
    written = yaml.safe_load(ANNOTATED.read_text())
    pipelines, artifacts = written.pop("pipelines"), written["engine"].pop("artifacts")
    defaults = as_written(WorkerConfig(pipelines=(PipelineSettings(config=Path("p.yaml")),)))
    assert defaults.pop("name")
    assert "# name:" in ANNOTATED.read_text()
    del defaults["pipelines"], defaults["engine"]["artifacts"]
    assert written == defaults
    assert set(pipelines[0]) == set(PipelineSettings.model_fields)
    assert all(pipelines[0][key] is None for key in ("topic", "group", "queue"))
    assert artifacts


def test_the_annotated_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_worker_config(ANNOTATED)
    assert config.pipelines[0].config == ANNOTATED.parent / "relevance.yaml"
    assert config.engine.artifacts["smollm2"] == ANNOTATED.parent / "../artifacts/smollm2"


def test_the_environment_wins(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("pipelines: [{config: p.yaml}]\nkafka: {bootstrap_servers: file:1, client_id: mine}")
    monkeypatch.setenv("BOUNDGEN_KAFKA__BOOTSTRAP_SERVERS", "env:2")
    monkeypatch.setenv("BOUNDGEN_KAFKA__SECURITY__SASL_PASSWORD", "secret")
    monkeypatch.setenv("BOUNDGEN_REPLIES__TOPICS", '["a", "b"]')
    monkeypatch.setenv("BOUNDGEN_ENGINE__ARTIFACTS__SMOLLM2", "/models/x")
    monkeypatch.setenv("BOUNDGEN_CACHE", "not a setting")
    config = read_worker_config(path)
    assert (config.kafka.bootstrap_servers, config.kafka.client_id) == ("env:2", "mine")
    assert config.replies.topics == ("a", "b")
    assert config.engine.artifacts == {"smollm2": Path("/models/x")}
    assert "secret" not in repr(config)


def test_all_mistakes_are_told_at_once_with_key_and_value(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOUNDGEN_KAFAK__CLIENT_ID", "x")
    monkeypatch.setenv("BOUNDGEN_REDIS__TIMEOUT_MS", "soon")
    text = problems(
        write(
            "kafka: {bootstrap_servrs: a, fetch_max_wait_ms: -3}\nqueue: 5\nreplys: {}\n"
            "pipelines: [{config: p.yaml, topik: t}, {config: q.yaml, topic: 'a b'}]"
        )
    )
    for line in (
        "BOUNDGEN_KAFAK__CLIENT_ID = 'x': no such section; did you mean BOUNDGEN_KAFKA__CLIENT_ID?",
        "redis.timeout_ms = 'soon': must be a whole number",
        "kafka.bootstrap_servrs = 'a': no such setting; did you mean 'bootstrap_servers'?",
        "kafka.fetch_max_wait_ms = -3: must be greater than 0",
        "queue = 5: ",
        "replys: no such setting; did you mean 'replies'?",
        "pipelines.0.topik = 't': no such setting; did you mean 'topic'?",
        "pipelines.1.topic = 'a b': ",
        "8 errors",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "worker.yaml: pipelines: required and not given"),
        ("pipelines: 5", "pipelines = 5: must be a list"),
        ("pipelines: [p.yaml]", "pipelines.0 = 'p.yaml': must be a map"),
        ("kafka: {a: 1", "is not YAML: "),
        ("pipelines: []", "pipelines = []: a worker needs at least one pipeline"),
        ("- a\n- b", "['a', 'b']: the file must be a map of sections"),
        ("kafka: {a: 1", "worker.yaml"),
        ("kafka: {}\nkafka: {}", "'kafka' is given twice"),
        ("pipelines: [{config: p}]\nengine: {device: tpu}", "engine.device = 'tpu': "),
        (
            "pipelines: [{config: p}]\nkafka: {security: {protocol: SASL_SSL}}",
            "kafka.security: protocol 'SASL_SSL' needs sasl_username and sasl_password",
        ),
        (
            "pipelines: [{config: p}]\nkafka: {revoke_drain_ms: 14000}",
            "kafka: revoke_drain_ms + commit_timeout_ms = 16000: a revocation must end within",
        ),
    ],
)
def test_one_mistake(write: Any, content: str, said: str) -> None:
    assert said in problems(write(content))


def test_a_secret_is_not_quoted(write: Any) -> None:
    text = problems(write("pipelines: [{config: p}]\nkafka: {security: {sasl_password: [hunter2]}}"))
    assert "kafka.security.sasl_password" in text
    assert "hunter2" not in text


def test_a_variable_that_is_no_json_is_named(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUNDGEN_REPLIES__TOPICS", "a,b")
    assert "replies" in problems(write("pipelines: [{config: p}]"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert problems(path) == f"{path}: cannot be read: No such file or directory"


def test_sections_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        KafkaSettings().client_id = "x"  # type: ignore[misc]


@pytest.mark.parametrize("servers", ["nohost", "a:b", "a:99999", ":9092", "a:1,,b:2"])
def test_addresses_that_are_none(write: Any, servers: str) -> None:
    path = write(f"pipelines: [{{config: p.yaml}}]\nkafka: {{bootstrap_servers: '{servers}'}}")
    assert "kafka.bootstrap_servers = " in problems(path)
    assert "is not host:port" in problems(path)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host", "must start with redis://"),
        ("redis://host:port/0", "its port is none"),
        ("redis://host:99999", "its port is none"),
        ("redis://host:0", "its port is none"),
        ("redis://:hunt/er2@host:6379/0", "its port is none"),
        ("redis://host:6379/first", "a database's number"),
        ("redis://host:6379?db=first", "no value of one"),
        ("redis://host:6379?dp=1", "no option of redis-py"),
    ],
)
def test_a_redis_address_that_is_none_is_told_without_its_password(write: Any, url: str, said: str) -> None:
    text = problems(write(f"pipelines: [{{config: p.yaml}}]\nredis: {{url: '{url}'}}"))
    assert "redis.url: " in text
    assert said in text
    assert "hunt" not in text


@pytest.mark.parametrize(
    "url", ["redis://u:p%2Fw@host:6379/1", "rediss://host", "unix:///run/redis.sock?db=1"]
)
def test_redis_addresses(write: Any, url: str) -> None:
    config = read_worker_config(write(f"pipelines: [{{config: p.yaml}}]\nredis: {{url: '{url}'}}"))
    assert config.redis.url == SecretStr(url)


@pytest.mark.parametrize("written", ["null", ""])
def test_a_variable_can_turn_redis_off(write: Any, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("BOUNDGEN_REDIS__URL", written)
    config = read_worker_config(write("pipelines: [{config: p.yaml}]\nredis: {url: 'redis://host'}"))
    assert config.redis.url is None
