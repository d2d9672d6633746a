"""A real worker process for demo and benchmarks: `python -m worker` with a generated configuration."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tools.processes import Child

READY_SECONDS = 180.0  # loading takes seconds; a busy machine with a cold disk is slower
STOP_SECONDS = 30.0
HTTP_SECONDS = 5.0


class WorkerProcess:
    """A running worker. Its metrics are read over HTTP, as Prometheus would."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        try:
            return self.ask("/ready")[0] == 200
        except OSError:
            return False

    def ask(self, path: str) -> tuple[int, list[str]]:
        """Status and reasons of /health or /ready. OSError if nobody answers."""
        try:
            answer = urllib.request.urlopen(f"{self._url}{path}", timeout=HTTP_SECONDS)
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            return int(answer.status), list(json.load(answer)["reasons"])

    def samples(self) -> list[Sample]:
        """Every sample of /metrics."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=HTTP_SECONDS) as answer:
            text = answer.read().decode()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric over its samples that have these labels."""
        found = [each for each in self.samples() if each.name == name]
        return sum(each.value for each in found if labels.items() <= each.labels.items())


@contextmanager
def run_worker(settings: Mapping[str, Any], folder: Path) -> Iterator[WorkerProcess]:
    """Write `settings` (http.port among them) as YAML into `folder`, start a worker with it and wait until
    it is ready. Raises ChildError with the end of its log. On the way out it is stopped."""
    config = folder / "worker.yaml"
    config.write_text(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))
    # -P: a folder named worker in the current directory must not be taken for ours
    command = [sys.executable, "-P", "-m", "worker", str(config)]
    with Child("the worker", command, folder / "worker.log") as child:
        worker = WorkerProcess(child, settings["http"]["port"])
        child.wait_ready(worker.is_ready, READY_SECONDS)
        yield worker
