"""README's complete example, as a newcomer would run it: its files, its commands, its producer, its reply."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools.processes import Child, free_ports
from tools.worker_process import READY_SECONDS, WorkerProcess

README = Path(__file__).parents[2] / "README.md"
PRODUCER_SECONDS = 120


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def commands() -> list[list[str]]:
    """Every `boundgen` command line, without comments; a trailing backslash joins lines."""
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for part in text.splitlines() for line in part.split("&&")]
    return [words for words in lines if words[:1] == ["boundgen"]]


@pytest.fixture
def folder(tmp_path: Path, kafka: str, redis_url: str, smollm2_artifact: Path) -> Path:
    """The example's files; only addresses and the artifact's place are this machine's."""
    here = {
        "localhost:9092": kafka,
        "redis://localhost:6379/0": redis_url,
        "artifacts/smollm2": str(smollm2_artifact),
    }
    pipeline, worker = blocks("yaml")[:2]
    files = {"relevance.yaml": pipeline, "worker.yaml": worker, "producer.py": blocks("python")[0]}
    places = re.compile("|".join(map(re.escape, here)))
    for name, text in files.items():
        (tmp_path / name).write_text(places.sub(lambda found: here[found[0]], text))
    return tmp_path


def test_the_example_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("BOUNDGEN_HTTP__PORT", str(port))
    worker = [sys.executable, "-P", "-m", "tools", "worker", str(folder / "worker.yaml")]
    with Child("README's worker", worker, folder / "worker.log") as child:
        child.wait_ready(WorkerProcess(child, port).is_ready, READY_SECONDS)
        doctor = run("-P", "-m", "tools", "doctor", "worker.yaml", folder=folder)
        producer = run("producer.py", folder=folder)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert producer.returncode == 0, producer.stderr
    outcome, first, second = re.fullmatch(r"(\w+) \[(.+), (.+)\]\n", producer.stdout).groups()  # type: ignore[union-attr]
    assert outcome == "ok"
    shown = [float(score) for score in re.findall(r"scores: {yes: ([\d.]+)", blocks("text")[1])]
    assert [float(first), float(second)] == pytest.approx(shown, abs=6e-3)
    assert shown[0] > shown[1]  # the shoes before the mug, though neither is called relevant


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PRODUCER_SECONDS, check=False
    )


def test_every_command_exists_with_its_options() -> None:
    assert len(commands()) >= 4
    for words in commands():
        path = words[1:3] if words[1] in ("bench", "items") else words[1:2]
        shown = run("-P", "-m", "tools", *path, "--help", folder=README.parent)
        assert shown.returncode == 0, words
        for option in (word for word in words if word.startswith("--")):
            assert option in shown.stdout, (words, option)
