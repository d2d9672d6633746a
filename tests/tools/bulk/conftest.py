"""Fixture `desk`: a worker's configuration over fixed_cost's nodes, and `boundgen bulk` in a process or here.

A row is {"custom_id": ID, "text": NUMBER}; its result is {"number": NUMBER}.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tools.cli import main
from tools.commands.bulk import app


@dataclass(frozen=True)
class Outcome:
    """How a run ended; summary is its JSON line, if it came so far."""

    status: int
    summary: dict[str, Any]
    told: str


@dataclass(frozen=True)
class Desk:
    """A folder with worker.yaml; files in it are named without their folder."""

    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def configure(self, **model: Any) -> None:
        """Write the pipeline and the worker's configuration; `model` are settings of FixedCost."""
        nodes = {
            "numbers": {"kind": "fixed_cost:Numbers"},
            "model": {
                "kind": "fixed_cost:FixedCost",
                "inputs": ["numbers"],
                "ran": str(self.path("ran")),
                **model,
            },
        }
        bounds = {"samples": 4, "tokens_per_sample": 2, "tokens_per_request": 8}
        pipeline = {"name": "numbers", "bounds": bounds, "nodes": nodes}
        self.path("numbers.yaml").write_text(yaml.safe_dump(pipeline))
        self.path("worker.yaml").write_text(yaml.safe_dump({"pipelines": [{"config": "numbers.yaml"}]}))

    def write_rows(self, name: str, numbers: Sequence[object]) -> Path:
        """JSONL of these numbers, with ids id-0, id-1, ..."""
        rows = [{"custom_id": f"id-{place}", "text": str(each)} for place, each in enumerate(numbers)]
        path = self.path(name)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def arguments(self, source: str, output: str, *more: str) -> list[str]:
        files = ["--input", str(self.path(source)), "--output", str(self.path(output))]
        return [str(self.path("worker.yaml")), *files, "--json", *more]

    def bulk(self, source: str, output: str, *more: str) -> Outcome:
        """The command in this process; errors for its user have status 2 and their text."""
        found = CliRunner().invoke(app, self.arguments(source, output, *more))
        lines = found.stdout.splitlines()
        summary = json.loads(lines[-1]) if found.exit_code in {0, 1} and lines else {}
        told = found.output if found.exception is None else f"{found.output}{found.exception}"
        status = found.exit_code if isinstance(found.exception, SystemExit | None) else 2
        if status == 2 and not isinstance(found.exception, SystemExit | ValueError | RuntimeError):
            raise found.exception or AssertionError(told)
        return Outcome(status, summary if status < 2 else {}, told)

    def start(self, source: str, output: str, *more: str) -> BaseProcess:
        """The command as a process of its own, forked from a server that has imported torch already."""
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["tools.cli", "tools.commands.bulk"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["boundgen", "bulk", *self.arguments(source, output, *more)])
            process = processes.Process(target=main)
            process.start()
        return process

    def read(self, name: str) -> list[dict[str, Any]]:
        """The lines of a JSONL result."""
        return [json.loads(line) for line in self.path(name).read_text().splitlines()]

    def ran(self) -> list[int]:
        """The numbers that reached the model, in order, of all runs."""
        return [int(line) for line in self.path("ran").read_text().split()]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.configure()
    return desk
