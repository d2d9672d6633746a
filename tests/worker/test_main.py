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
    (folder / "worker.yaml").write_text(f"pipelines: [{{config: p.yaml}}]\nhttp: {{port: 0}}\n{worker}")
    return str(folder / "worker.yaml")


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m worker CONFIG.yaml\n"


def test_a_wrong_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path, "", "kafka: {bootstrap_servrs: a}")]) == 2
    said = capsys.readouterr().err
    assert "kafka.bootstrap_servrs = 'a': no such setting; did you mean 'bootstrap_servers'?" in said


@pytest.mark.parametrize(
    ("pipeline", "worker", "said"),
    [
        ("name: p\nbounds: {samples: 0}\nnodes: {}", "", "bounds.samples = 0"),
        ("", "kafka: {security: {protocol: SSL, ssl_cafile: none.pem}}", "No such file"),
    ],
)
def test_a_start_that_fails(
    pipeline: str, worker: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(read_worker_config(Path(write(tmp_path, pipeline, worker)))) == 1
    printed = capsys.readouterr().out  # where structlog writes until it is configured
    assert said in printed
    assert "Traceback" not in printed


def test_told_to_end_while_loading(tmp_path: Path) -> None:
    (tmp_path / "slow_node.py").write_text(
        "import time\nfrom fixed_cost import Numbers\n"
        "class Slow(Numbers):\n    def __init__(self, options, context):\n"
        f"        open({str(tmp_path / 'loading')!r}, 'w').close()\n        time.sleep(60)\n"
    )
    config = write(
        tmp_path,
        "name: p\nbounds: {samples: 1, tokens_per_sample: 1, tokens_per_request: 1}\n"
        'nodes: {n: {kind: "slow_node:Slow"}, m: {kind: "fixed_cost:FixedCost", inputs: [n], ran: x}}',
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
