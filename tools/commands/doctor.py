"""`boundgen doctor`: check this machine and, with a worker's configuration, everything around that worker;
or an artifact's answers on texts."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from engine.errors import ConfigError
from engine.pipeline import read_pipeline
from engine.quant.budget import Budget
from tools.accuracy import read_calibration
from tools.doctor.answers import TEXTS, check_answers
from tools.doctor.broker import Stream, check_broker
from tools.doctor.findings import Finding, Level, fail
from tools.doctor.machine import check_compiler, check_cuda, check_packages, check_python, check_room
from tools.doctor.redis_server import check_redis
from tools.doctor.serving import check_serving
from tools.errors import UserError
from tools.model_cache import cache_root
from worker.config import WorkerConfig, WorkerConfigError, read_worker_config

app = typer.Typer(rich_markup_mode="rich")
STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@app.command(epilog="Example: [bold]boundgen doctor worker.yaml[/]")
def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A worker's YAML, or an artifact with TEXTS; without it only this machine is checked."
        ),
    ] = None,
    texts: Annotated[
        str | None, typer.Argument(help="JSONL of requests to measure an artifact's answers on; or demo.")
    ] = None,
    pipeline: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Whose template makes the requests texts."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(exists=True, help="The artifact's checkpoint, if it moved.")
    ] = None,
    max_label_shift: Annotated[
        float, typer.Option(help="Most that a label's log-probability may move on average.")
    ] = Budget().label_shift,
    max_kl: Annotated[float, typer.Option(help="Most mean KL of the next token.")] = Budget().kl,
    min_winners: Annotated[
        float, typer.Option(help="Least share of the same sequences, where a pipeline searches.")
    ] = Budget().winners,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line of all findings.")] = False,
) -> None:
    """Check this machine and a worker's surroundings, and say how to mend what is wrong.

    Python, packages, compiler, CUDA, disk and limits; with a worker's configuration also broker, topics, lag,
    Redis and its clock, artifacts and pipelines. With an artifact and texts: its answers against the float32
    model. Changes nothing. Exit status 1 if anything fails.
    """
    console = Console(highlight=False, soft_wrap=True)
    findings = []
    budget = Budget(max_label_shift, max_kl, min_winners)
    calibration = read_calibration(texts, pipeline or [], budget, TEXTS)
    if calibration is not None and config is None:
        raise UserError("TEXTS go with an artifact")
    if calibration is None and config is not None and config.is_dir():
        raise UserError(
            f"{config}: is no worker's YAML; of an artifact TEXTS are needed, a JSONL file or demo"
        )
    examined = (
        examine(config)
        if calibration is None or config is None
        else check_answers(config, model, calibration)
    )
    with quiet("aiokafka"):  # what it would say is in the findings
        for finding in examined:
            findings.append(finding)
            style = STYLES[finding.level]
            console.print(f"[{style}]{finding.level:>4}[/]  {finding.check:<14} {escape(finding.detail)}")
            if finding.mend:
                console.print(f"      {'':<14} [dim]mend:[/] {escape(finding.mend)}")
    counts = Counter(finding.level for finding in findings)
    console.print(", ".join(f"{counts[level]} {level}" for level in Level))
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(each) for each in findings], **counts}))
    if counts[Level.FAIL]:
        raise typer.Exit(1)


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Log records of `name` below critical are dropped meanwhile."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def examine(path: Path | None) -> Iterator[Finding]:
    """All findings, as they are made: first the machine, then what the configuration names."""
    yield from check_python()
    yield from check_packages()
    yield from check_compiler()
    config = None
    if path is not None:
        try:
            config = read_worker_config(path)
        except WorkerConfigError as error:
            yield fail("configuration", str(error), "every setting with its default: configs/worker.yaml")
    yield from check_cuda(config.engine.device if config else None)
    yield from check_room(cache_root())
    if config is not None:
        streams = list(read_streams(config))
        yield from asyncio.run(check_broker(config.kafka, streams, config.replies.topics))
        url = config.redis.url
        yield from asyncio.run(check_redis(url.get_secret_value() if url else None))
        yield from check_serving(config)


def read_streams(config: WorkerConfig) -> Iterator[Stream]:
    """Topic and group of each pipeline, named as the worker names them; a file that cannot be read is told of
    with the pipelines."""
    for settings in config.pipelines:
        try:
            name = read_pipeline(settings.config).name
        except ConfigError:
            continue
        topic = settings.topic or f"boundgen.{name}.requests"
        yield Stream(name, topic, settings.group or f"boundgen.{name}")
