"""Variables that look like settings: those that are none are told, with the name that was meant."""

from __future__ import annotations

import pytest

from worker.config import WorkerConfig
from worker.environment import strange_variables


def strange(**environment: str) -> list[str]:
    return list(strange_variables(WorkerConfig, environment))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BOUNDGEN_KAFKA_BOOTSTRAP_SERVERS", "BOUNDGEN_KAFKA__BOOTSTRAP_SERVERS"),
        ("BOUNDGEN_KAFKA_SECURITY_PROTOCOL", "BOUNDGEN_KAFKA__SECURITY__PROTOCOL"),
        ("BOUNDGEN_HTTP_PORT", "BOUNDGEN_HTTP__PORT"),
        ("BOUNDGEN_PIPELINE", "BOUNDGEN_PIPELINES"),
        ("BOUNDGEN_KAFAK__CLIENT_ID", "BOUNDGEN_KAFKA__CLIENT_ID"),
    ],
)
def test_a_slip(name: str, meant: str) -> None:
    (said,) = strange(**{name: "x"})
    assert said.startswith(f"{name} = 'x': no such ")
    assert said.endswith(f"did you mean {meant}?")


def test_something_else() -> None:
    (said,) = strange(BOUNDGEN_COLOUR="red")
    assert said.startswith("BOUNDGEN_COLOUR = 'red': no such setting; known: name, pipelines, engine, kafka")


@pytest.mark.parametrize("name", ["BOUNDGEN_KAFKA_SASL_PASSWORD", "BOUNDGEN_REDIS_URL"])
def test_what_may_be_a_secret_is_not_quoted(name: str) -> None:
    (said,) = strange(**{name: "hunter2"})
    assert said.startswith(f"{name}: no such setting; did you mean ")


def test_settings_and_what_others_read() -> None:
    assert not strange(
        BOUNDGEN_NAME="w",
        BOUNDGEN_KAFKA="{}",
        BOUNDGEN_KAFKA__SECURITY__SASL_PASSWORD="p",
        BOUNDGEN_ENGINE__ARTIFACTS__SMOLLM2="/models/x",
        BOUNDGEN_QUEUE__NO_SUCH_KEY="told by the section itself",
        BOUNDGEN_CACHE="/cache",
        BOUNDGEN_TEST_KAFKA="host:9092",
        PATH="/bin",
    )


def test_what_kubernetes_adds_for_services_named_like_us() -> None:
    """In every pod of the namespace, unless that is turned off: no reason not to start."""
    assert not strange(
        BOUNDGEN_SERVICE_HOST="10.0.0.1",
        BOUNDGEN_SERVICE_PORT="9464",
        BOUNDGEN_SERVICE_PORT_METRICS="9464",
        BOUNDGEN_PORT="tcp://10.0.0.1:9464",
        BOUNDGEN_PORT_9464_TCP="tcp://10.0.0.1:9464",
        BOUNDGEN_PORT_9464_TCP_ADDR="10.0.0.1",
        BOUNDGEN_REDIS_SERVICE_HOST="10.0.0.2",
        BOUNDGEN_REDIS_PORT="tcp://10.0.0.2:6379",
        BOUNDGEN_REDIS_PORT_6379_TCP_PROTO="tcp",
    )
