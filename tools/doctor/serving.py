"""What the worker would load: artifacts that fit this machine, pipelines that are valid with them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from engine.artifact import Artifact
from engine.errors import ArtifactError, ConfigError
from engine.pipeline import ArtifactStore, Pipeline, read_pipeline
from tools.doctor.findings import Finding, fail, ok, warn
from worker.config import WorkerConfig


def check_serving(config: WorkerConfig) -> Iterator[Finding]:
    """One finding for each artifact and pipeline; loads them as the worker does (seconds and memory)."""
    yield _check_threads(config)
    engine = config.engine
    store = ArtifactStore(engine.artifacts, device=engine.device, lanes=engine.lanes, threads=engine.threads)
    try:
        for name in engine.artifacts:
            yield _check_artifact(store, name)
        for settings in config.pipelines:
            try:
                with Pipeline.open(read_pipeline(settings.config), store) as pipeline:
                    detail = (
                        f"{pipeline.name}: valid, model {pipeline.model.name if pipeline.model else 'none'}"
                    )
                    yield ok("pipeline", detail)
            except (ConfigError, ArtifactError) as error:
                yield fail("pipeline", str(error), f"mend {settings.config}, or the artifact that it names")
    finally:
        store.close()


def _check_artifact(store: ArtifactStore, name: str) -> Finding:
    try:
        artifact: Artifact = store.get(name).artifact
    except ArtifactError as error:
        return fail(
            "artifact", f"{name}: {error}", "build it on a machine like this one: boundgen build --help"
        )
    made = artifact.manifest
    detail = f"{name}: {made.family}, {made.dtype}, {made.device} {made.device_arch}, torch {made.torch}"
    return ok("artifact", f"{detail}; digests match ({artifact.digest[:12]})")


def _check_threads(config: WorkerConfig) -> Finding:
    wanted, there = config.engine.lanes * config.engine.threads, os.cpu_count() or 1
    detail = f"{config.engine.lanes} lanes of {config.engine.threads} threads on {there} CPUs"
    if config.engine.device == "cpu" and wanted > there:
        return warn("threads", detail, "set engine.lanes x engine.threads to at most the number of CPUs")
    return ok("threads", detail)
