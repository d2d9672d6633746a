"""`python -m worker`: what a wrong start says, and the exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker.__main__ import main
from worker.config import read_worker_config
from worker.service import run

SERVICES = Path(__file__).parents[1] / "services"


def write(folder: Path, pipeline: str, worker: str = "") -> str:
    (folder / "p.yaml").write_text(pipeline)
    defaults = {"pipelines": "[{config: p.yaml}]", "http": "{port: 0}", "redis": "{url: null}"}
    lines = [f"{key}: {value}" for key, value in defaults.items() if not worker.startswith(key)]
    (folder / "worker.yaml").write_text("\n".join([*lines, worker]))
    return str(folder / "worker.yaml")


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m worker CONFIG.yaml\n"


def test_a_wrong_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path, "", "kafka: {bootstrap_servrs: a}")]) == 2
    said = capsys.readouterr().err
    assert "kafka.bootstrap_servrs = 'a': no such setting; did you mean 'bootstrap_servers'?" in said


NODES = 'nodes: {n: {kind: "fixed_cost:Numbers"}, m: {kind: "fixed_cost:FixedCost", inputs: [n], ran: x}}'
GOOD = f"name: p\nbounds: {{samples: 1, tokens_per_sample: 1, tokens_per_request: 1}}\n{NODES}"
TOKENIZER = GOOD.replace('"fixed_cost:Numbers"', "tokenizer, artifact: a")


@pytest.mark.parametrize(
    ("pipeline", "worker", "code", "said"),
    [
        ("name: p\nbounds: {samples: 0}\nnodes: {}", "", 2, "p.yaml: bounds.samples = 0"),
        (GOOD.replace("Numbers", "Number"), "", 2, "p.yaml: nodes.n.kind = 'fixed_cost:Number': "),
        (GOOD, "replies: {topics: [boundgen.p.requests]}", 2, "replies.topics.0 = 'boundgen.p.requests': "),
        (TOKENIZER, "", 2, "p.yaml: nodes.n.artifact = 'a': no such artifact"),
        (
            TOKENIZER,
            "engine: {artifacts: {a: none}}",
            1,
            "artifact 'a': {here}/none: no readable manifest.json",
        ),
        (GOOD, "pipelines: [{config: no.yaml}]", 2, "pipelines.0.config = '{here}/no.yaml': cannot be read"),
        (
            "",
            "kafka: {security: {protocol: SSL, ssl_cafile: no.pem}}",
            2,
            "kafka.security.ssl_cafile = '{here}/no.pem': No such file or directory",
        ),
        (
            "",
            "kafka: {security: {protocol: SSL, ssl_certfile: p.yaml}}",
            2,
            "kafka.security.ssl_certfile = '{here}/p.yaml': ",
        ),
        ("", "http: {host: 192.0.2.1}", 1, "http.host = '192.0.2.1': Cannot assign requested address"),
        ("", "http: {host: no.such.host.invalid}", 1, "http.host = 'no.such.host.invalid': "),
        (
            GOOD,
            "kafka: {bootstrap_servers: '127.0.0.1:1', start_timeout_ms: 500}",
            1,
            "kafka.bootstrap_servers = '127.0.0.1:1': ",
        ),
    ],
)
def test_a_start_that_fails(
    pipeline: str, worker: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = read_worker_config(Path(write(tmp_path, pipeline, worker)))
    assert run(config) == code
    printed = capsys.readouterr().out  # where structlog writes until it is configured
    assert said.format(here=tmp_path) in printed
    assert "Traceback" not in printed


def test_told_to_end_while_loading(tmp_path: Path) -> None:
    (tmp_path / "slow_node.py").write_text(
        "import time\nfrom fixed_cost import Numbers\n"
        "class Slow(Numbers):\n    def __init__(self, options, context):\n"
        f"        open({str(tmp_path / 'loading')!r}, 'w').close()\n        time.sleep(60)\n"
    )
    config = write(
        tmp_path,
        GOOD.replace("fixed_cost:Numbers", "slow_node:Slow"),
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "worker", config],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SERVICES}{os.pathsep}{tmp_path}"},
    )
    give_up_s = time.monotonic() + 60
    while not (tmp_path / "loading").exists() and time.monotonic() < give_up_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0, said
    assert "ended while loading" in said


def test_a_start_does_not_wait_for_a_library_that_only_tokenizers_need() -> None:
    command = "import sys, worker.service; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
