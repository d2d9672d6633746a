"""The command line: every help is there without torch, and user errors are one message with status 2."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.cli import app

COMMANDS = (
    ["build"],
    ["worker"],
    ["demo"],
    ["doctor"],
    ["bench", "engine"],
    ["bench", "overhead"],
)
WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def invoke(*arguments: str):
    return CliRunner(env=WIDE).invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: list[str]):
    result = invoke(*command, "--help")
    assert result.exit_code == 0, result.output
    assert f"boundgen {' '.join(command)}" in " ".join(result.output.split("Example:")[1].split())
    assert len(result.output.splitlines()) > 10


def test_the_list_of_commands_needs_no_torch():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom tools.cli import app\n"
        "for arguments in (['--help'], ['bench', '--help']):\n"
        "    result = CliRunner().invoke(app, arguments)\n"
        "    assert result.exit_code == 0, result.output\n"
        "    print(result.output)\n"
        "heavy = {'torch', 'transformers', 'aiokafka', 'worker', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("build", "worker", "demo", "doctor", "bench", "engine", "overhead"):
        assert re.search(rf"\b{name}\b", done.stdout)


def test_sigterm_leaves_no_scratch_folder_behind(tmp_path: Path):
    """As systemd, a container's stop or `timeout` end a build: half a gigabyte of it would stay."""
    code = (
        "import sys, tempfile, time\nfrom tools import cli\n"
        "def work(**options):\n"
        "    with tempfile.TemporaryDirectory(dir=sys.argv[1]):\n"
        "        print('working', flush=True)\n"
        "        time.sleep(60)\n"
        "cli.app = work\ncli.main()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_a_misspelt_command_is_named_with_the_nearest_one():
    result = invoke("bild")
    assert result.exit_code == 2
    assert "bild" in result.output
    assert "build" in result.output


def test_a_checkpoint_that_is_none_is_one_message(tmp_path: Path):
    (tmp_path / "model").mkdir()
    result = invoke("build", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "error:" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_bounds_that_contradict_each_other_quote_the_value(tmp_path: Path):
    result = invoke(
        *("build", "--model", str(tmp_path), "--out", str(tmp_path / "out")),
        *("--tokens-per-request", "100", "--tokens-per-sample", "200"),
    )
    assert result.exit_code == 2
    assert "200" in result.output
    assert "100" in result.output


def test_a_worker_configuration_with_errors_names_key_and_value(tmp_path: Path):
    config = tmp_path / "worker.yaml"
    config.write_text("pipelines: [{config: x.yaml}]\nhttp: {port: 99999}\n")
    result = invoke("worker", str(config))
    assert result.exit_code == 2
    assert "http.port" in result.output
    assert "99999" in result.output
    assert "Traceback" not in result.output


def test_debug_lets_the_error_through(tmp_path: Path):
    result = invoke("--debug", "worker", str(tmp_path / "missing.yaml"))
    assert result.exit_code == 1
    assert "missing.yaml" in str(result.exception)


def test_a_command_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tools.commands.doctor", None)
    result = invoke("doctor")
    assert result.exit_code == 2
    assert "doctor cannot start" in result.output
    assert "pip install" in result.output


def test_a_full_disk_is_one_message_whichever_command_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def write(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "capture.bin")

    monkeypatch.setattr("tools.commands.doctor.check_python", write)
    result = invoke("doctor")
    assert result.exit_code == 2, result.output
    assert "error: capture.bin: No space left on device; make room" in result.output
