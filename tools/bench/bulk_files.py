"""`bench bulk`, the file part: a Parquet file through `boundgen bulk` with a model that only sleeps.

The command runs as a process of its own, so that its peak memory is the kernel's own figure (ru_maxrss).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tools.bench.overhead_run import Load, titles, write_pipeline
from tools.errors import UserError

GROUP_ROWS = 50_000


@dataclass(frozen=True)
class FileRun:
    """One run over a file; summary is the command's own JSON line."""

    rows: int
    peak_mb: float
    summary: dict[str, Any]

    @property
    def rows_per_s(self) -> float:
        return float(self.summary["rows_per_s"])

    @property
    def share(self) -> float:
        """Of the run's time that is reading and writing, the final file included: CPU time of their threads,
        which a busy machine does not stretch, over the time that the run took."""
        return float(self.summary["read_cpu_s"] + self.summary["write_cpu_s"]) / float(
            self.summary["seconds"]
        )

    def numbers(self) -> dict[str, float]:
        """For the JSON line."""
        each = {
            key: round(self.summary[key] / self.rows * 1e6, 2)
            for key in ("read_cpu_s", "write_cpu_s", "cpu_s")
        }
        return {
            "rows": self.rows,
            "rows_per_s": self.rows_per_s,
            "peak_mb": round(self.peak_mb, 1),
            "read_write_share": round(self.share, 3),
            "read_cpu_us_a_row": each["read_cpu_s"],
            "write_cpu_us_a_row": each["write_cpu_s"],
            "cpu_us_a_row": each["cpu_s"],
        }


def write_input(path: Path, num_rows: int) -> None:
    """Queries and titles of the demo, each row told apart by its number; columns that nobody reads beside."""
    samples = [sample for request in titles() for sample in request]
    schema = pa.schema(
        [("event", pa.string()), ("query", pa.string()), ("title", pa.string()), ("page", pa.int32())]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, num_rows, GROUP_ROWS):
            rows = list(_rows(samples, first, min(GROUP_ROWS, num_rows - first)))
            writer.write_table(pa.Table.from_pylist(rows, schema))


def configure(folder: Path, artifact: Path, load: Load) -> Path:
    """A worker's configuration whose model sleeps."""
    pipeline = write_pipeline(folder, load)
    settings = {
        "pipelines": [{"config": str(pipeline)}],
        "engine": {"device": "cpu", "artifacts": {"smollm2": str(artifact)}},
    }
    path = folder / "worker.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def run_file(config: Path, source: Path, num_rows: int) -> FileRun:
    """`boundgen bulk` over one file. UserError unless every row was scored."""
    output = source.with_name(f"scores-{source.name}")
    command = [sys.executable, "-P", "-m", "tools", "bulk", str(config), "--json", "--id", "event"]
    log = source.with_suffix(".log")
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [*command, "--input", str(source), "--output", str(output)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert child.stdout is not None
        told = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise UserError(
            f"boundgen bulk ended with {os.waitstatus_to_exitcode(status)}: {log.read_text()[-2000:]}"
        )
    child.returncode = 0
    summary = json.loads(told.splitlines()[-1])
    if summary["ok"] != num_rows or pq.read_metadata(output).num_rows != num_rows:
        raise UserError(f"{num_rows} rows went in and {summary['ok']} came out")
    output.unlink()
    return FileRun(num_rows, usage.ru_maxrss / 1024, summary)


def _rows(samples: list[dict[str, str]], first: int, count: int) -> Iterator[dict[str, object]]:
    for number in range(first, first + count):
        sample = samples[number % len(samples)]
        title = f"{sample['title']} {number}"
        yield {"event": f"event-{number:09d}", "query": sample["query"], "title": title, "page": number % 50}
