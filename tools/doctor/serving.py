"""What the worker would load: artifacts that fit this machine, pipelines that are valid with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.artifact import Artifact
from engine.errors import ArtifactError, ConfigError
from engine.pipeline import ArtifactStore, Pipeline, PipelineConfig, read_pipeline
from tools.doctor.findings import Finding, fail, ok, warn
from worker.config import WorkerConfig

MEND = "as it says, or build it on a machine like this one: boundgen build --help"


def check_serving(config: WorkerConfig) -> Iterator[Finding]:
    """One finding for each artifact and pipeline; loads them as the worker does (seconds and memory). What an
    artifact lacks is told once, with the pipelines that cannot be served for it."""
    yield _check_threads(config)
    engine = config.engine
    read = {settings.config: _read(settings.config) for settings in config.pipelines}
    pipelines = [each for each in read.values() if isinstance(each, PipelineConfig)]
    store = ArtifactStore(engine.artifacts, device=engine.device, lanes=engine.lanes, threads=engine.threads)
    told: set[str] = set()
    lacking: dict[str, list[str]] = {}  # what an artifact lacks for some pipelines only, and which
    try:
        for name in engine.artifacts:
            users = [each.name for each in pipelines if name in _artifacts(each)]
            yield _check_artifact(store, name, users, told)
        for path, found in read.items():
            try:
                yield _check_pipeline(found, store)
            except ConfigError as error:
                yield fail("pipeline", str(error), f"mend {path}, or the artifact that it names")
            except ArtifactError as error:
                if str(error) not in told:
                    lacking.setdefault(str(error), []).append(getattr(found, "name", str(path)))
        for reason, names in lacking.items():
            yield fail("pipeline", f"{', '.join(names)}: {reason}", MEND)
    finally:
        store.close()


def _read(path: Path) -> PipelineConfig | ConfigError:
    try:
        return read_pipeline(path)
    except ConfigError as error:
        return error


def _artifacts(pipeline: PipelineConfig) -> set[object]:
    return {node.settings.get("artifact") for node in pipeline.nodes.values()}


def _check_pipeline(config: PipelineConfig | ConfigError, store: ArtifactStore) -> Finding:
    """Raises ConfigError, ArtifactError."""
    if isinstance(config, ConfigError):
        raise config
    with Pipeline.open(config, store) as pipeline:
        model = pipeline.model.name if pipeline.model else "none"
        return ok("pipeline", f"{pipeline.name}: valid, model {model}")


def _check_artifact(store: ArtifactStore, name: str, users: list[str], told: set[str]) -> Finding:
    """`told` gets the error, which a pipeline would repeat."""
    try:
        artifact: Artifact = store.get(name).artifact
    except ArtifactError as error:
        told.add(str(error))
        needed = f"pipelines that need it: {', '.join(users)}" if users else "no pipeline needs it"
        said = str(error) if repr(name) in str(error) else f"artifact {name!r}: {error}"
        return fail("artifact", f"{said}; {needed}", MEND)
    made = artifact.manifest
    detail = f"{name}: {made.family}, {made.dtype}, {made.device} {made.device_arch}, torch {made.torch}"
    return ok("artifact", f"{detail}; digests match ({artifact.digest[:12]})")


def _check_threads(config: WorkerConfig) -> Finding:
    wanted, there = config.engine.lanes * config.engine.threads, os.cpu_count() or 1
    detail = f"{config.engine.lanes} lanes of {config.engine.threads} threads on {there} CPUs"
    if config.engine.device == "cpu" and wanted > there:
        return warn("threads", detail, "set engine.lanes x engine.threads to at most the number of CPUs")
    return ok("threads", detail)
