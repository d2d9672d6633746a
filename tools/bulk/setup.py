"""From what the person asked for to a run: everything cheap is checked before a model is loaded.

The run's identity is all that its results depend on: input files (name, size, time of change), columns,
pipeline, artifacts, sizes of parts, format of the output. A continuation must have the same.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import ArtifactError
from engine.manifest import read_manifest
from engine.pipeline import PipelineConfig, read_pipeline
from tools.bulk.columns import Columns, Wanted
from tools.bulk.inputs import InputFile, Kind, check_apart, find_inputs
from tools.bulk.json_lines import JsonLines
from tools.bulk.parquet_rows import ParquetRows
from tools.bulk.progress import BulkProgress
from tools.bulk.reading import PartReader
from tools.bulk.relay import Stop
from tools.bulk.run import BulkRun, Scorer, Tally
from tools.bulk.workspace import Workspace, digest
from tools.errors import UserError
from worker.config import WorkerConfig, WorkerConfigError, read_worker_config
from worker.settings import EngineSettings, PipelineSettings

PART_CHARS = 16 << 20  # a part of long texts has fewer rows: about six parts are in memory at once
Via = Literal["engine", "kafka"]


@dataclass(frozen=True)
class Asked:
    """The command line."""

    config: Path
    pipeline: str | None
    input: Path
    output: Path
    via: Via
    mapped: Mapping[str, str]
    id_column: str | None
    part_rows: int
    prepare_threads: int
    timeout_ms: int
    in_flight: int
    restart: bool
    overwrite: bool


@dataclass(frozen=True)
class Job:
    """What was asked for, checked."""

    worker: WorkerConfig
    settings: PipelineSettings
    pipeline: PipelineConfig
    files: tuple[InputFile, ...]
    source: JsonLines | ParquetRows
    output: Path
    kind: Kind
    identity: Mapping[str, object]


def prepare_job(asked: Asked) -> Job:
    """UserError and ConfigError for all that can be known without a model or a broker."""
    try:
        worker = read_worker_config(asked.config)
    except WorkerConfigError as error:
        raise UserError(str(error)) from error
    settings, pipeline = choose_pipeline(worker, asked.pipeline)
    files = find_inputs(asked.input)
    kind = Kind.of(asked.output, "--output")
    output = asked.output.resolve()
    if output.is_dir() or not output.parent.is_dir():
        what = "is a directory" if output.is_dir() else "its directory does not exist"
        raise UserError(f"--output = {str(asked.output)!r}: {what}; name a file")
    check_apart(files, asked.input, output)
    wanted = Wanted.of(pipeline)
    columns = Columns.choose(wanted, asked.mapped, asked.id_column)
    source: JsonLines | ParquetRows
    if files[0].kind.format == "parquet":
        source = ParquetRows(files, columns)
        source.check(wanted)
    else:
        source = JsonLines(files, columns)
    identity = {
        "input": [file.identity for file in files],
        "output": [kind.format, kind.compression],
        "columns": [dict(columns.paths), columns.token_ids, columns.id],
        "pipeline": pipeline.model_dump(mode="json"),
        "via": asked.via,
        "part_rows": asked.part_rows,
        "artifacts": artifact_digests(pipeline, worker.engine) if asked.via == "engine" else {},
    }
    return Job(worker, settings, pipeline, files, source, output, kind, identity)


def run_job(job: Job, asked: Asked, scorer: Scorer, workspace: Workspace, stop: Stop) -> Tally:
    """Score, join, and take the workspace away. Raises Stopped with the journal true."""
    gc.collect()
    gc.freeze()  # what is loaded stays: else every full collection walks through all of it
    reader = PartReader(job.source, asked.part_rows, PART_CHARS)
    run = BulkRun(reader, scorer, workspace, job.kind, stop)
    with BulkProgress(run.tally.rows) as progress:
        tally = run.run(progress, job.output)
    workspace.finish()
    return tally


def open_workspace(workspace: Workspace, job: Job, asked: Asked) -> str:
    """Begin or go on; the run's digest. UserError where that would destroy something."""

    def may_begin() -> None:
        if job.output.exists() and not asked.overwrite:
            raise UserError(f"--output = {str(job.output)!r}: exists; another name, or --overwrite")

    workspace.open(job.identity, restart=asked.restart, may_begin=may_begin)
    return digest(job.identity)


def choose_pipeline(worker: WorkerConfig, name: str | None) -> tuple[PipelineSettings, PipelineConfig]:
    """The one of that name, or the only one."""
    found = {
        config.name: (each, config) for each in worker.pipelines for config in [read_pipeline(each.config)]
    }
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is None or name not in found:
        given = "not given" if name is None else repr(name)
        raise UserError(f"--pipeline = {given}: the configuration has {', '.join(found)}; name one")
    return found[name]


def artifact_digests(pipeline: PipelineConfig, engine: EngineSettings) -> dict[str, str]:
    """Of the artifacts that the pipeline's nodes name; what is missing is told of when they are loaded."""
    digests = {}
    for node in pipeline.nodes.values():
        name = str(node.settings.get("artifact"))
        if name in engine.artifacts:
            with contextlib.suppress(ArtifactError, OSError, ValueError):
                digests[name] = read_manifest(engine.artifacts[name])[1]
    return digests
