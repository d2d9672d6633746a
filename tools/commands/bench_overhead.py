"""`boundgen bench overhead`: what the worker adds to the model's own time, through a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.apache_kafka import apache_kafka
from tools.bench.overhead_report import parts, report_lines
from tools.bench.overhead_run import (
    Load,
    Measured,
    Servers,
    measure,
    start_echo,
    worker_settings,
    write_pipeline,
)
from tools.bench.provenance import provenance
from tools.commands.demo import BEAM, BOUNDS
from tools.demo.servers import embedded_redis
from tools.demo.topics import create_topics
from tools.errors import UserError
from tools.model_cache import smollm2_gguf
from tools.processes import ChildError
from tools.steps import Steps
from tools.worker_process import run_worker

app = typer.Typer(rich_markup_mode="rich")
PARTITIONS = 4


@app.command(epilog="Example: [bold]KAFKA_HOME=~/kafka_2.13-4.1.0 boundgen bench overhead --json[/]")
def overhead(
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Use this Kafka; without it one is started from KAFKA_HOME.")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Use this Redis; without it the embedded one.")
    ] = None,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second, whatever the replies do.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="How long is measured, after a warm-up.")] = 20,
    sleep_ms: Annotated[float, typer.Option(min=0, help="What a batch takes in the model's place.")] = 5,
    lanes: Annotated[int, typer.Option(min=1, help="Batches that may sleep at once.")] = 2,
    fetch_max_wait_ms: Annotated[
        int, typer.Option(min=1, help="How long a fetch waits at the broker; 5 for the demo's own broker.")
    ] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Measure the worker's own share of a request's latency: its model only sleeps.

    A real worker process gets the demo's relevance queries at a fixed rate, tokenizes and answers; a bare
    echo gets the same through the same broker. Latency counts from the moment a request was due. The last
    lines say where the time goes and what dominates.
    """
    load = Load(rate, seconds, sleep_ms, lanes)
    if not bootstrap_servers:
        kafka_home()  # that there is none is said before minutes of building
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boundgen-bench-")))
        say = stack.enter_context(Steps())
        source = smollm2_gguf(say=say)
        artifact = cached_artifact(Wanted(source, "smollm2", "cpu", None, BOUNDS, beam=BEAM), say=say)
        say("starting broker and Redis")
        try:
            bootstrap = bootstrap_servers or stack.enter_context(apache_kafka(kafka_home(), folder))
            redis = redis_url or stack.enter_context(embedded_redis(folder))
            servers = Servers(bootstrap, redis, fetch_max_wait_ms)
            echo, worker = compare(servers, load, artifact, folder, say)
        except ChildError as error:
            raise UserError(str(error)) from error
    found = parts(worker.timed, sleep_ms)
    console = Console(highlight=False, soft_wrap=True)
    for line in report_lines(worker.latency, echo.latency, found, sleep_ms, rate):
        console.print(line)
    if worker.cpu_ms is not None and echo.cpu_ms is not None:
        console.print(f"processor time a request: worker {worker.cpu_ms:.2f} ms, echo {echo.cpu_ms:.2f} ms")
    if as_json:
        told = {"benchmark": "overhead", "fetch_max_wait_ms": fetch_max_wait_ms, **asdict(load)}
        typer.echo(json.dumps({**told, **numbers(worker, echo, found, sleep_ms), **provenance("cpu")}))


def numbers(worker: Measured, echo: Measured, found: dict[str, float], sleep_ms: float) -> dict[str, object]:
    """What was measured, for the JSON line."""
    return {
        "mean_minus_sleep_ms": round(worker.latency.mean - sleep_ms, 2),
        **worker.latency.rounded(),
        "cpu_ms": worker.cpu_ms,
        "echo": {**echo.latency.rounded(), "cpu_ms": echo.cpu_ms},
        "parts_ms": {name: round(value, 3) for name, value in found.items()},
    }


def compare(
    servers: Servers, load: Load, artifact: Path, folder: Path, say: Steps
) -> tuple[Measured, Measured]:
    """(echo, worker), measured one after the other."""
    run = uuid.uuid4().hex[:8]
    topics = {name: f"boundgen.bench.{run}.{name}" for name in ("echo", "sleep", "replies")}
    dead = f"{topics['sleep']}-dlt"
    asyncio.run(create_topics(servers.bootstrap, dict.fromkeys([*topics.values(), dead], PARTITIONS)))
    say("measuring the echo")
    with start_echo(servers, topics["echo"], folder) as child:
        echo = uvloop.run(measure(servers, topics["echo"], topics["replies"], load, child))
    say("starting the worker")
    pipeline = write_pipeline(folder, load)
    settings = worker_settings(servers, pipeline, artifact, topics["sleep"], topics["replies"])
    with run_worker(settings, folder) as running:
        say("measuring the worker")
        worker = uvloop.run(measure(servers, topics["sleep"], topics["replies"], load, running.child))
    return echo, worker


def kafka_home() -> Path:
    """The distribution to start a broker from. UserError without one."""
    home = os.environ.get("KAFKA_HOME", "")
    if not home:
        raise UserError(
            "no broker: give --bootstrap-servers, or set KAFKA_HOME to a distribution of Apache Kafka"
        )
    if not (Path(home) / "bin" / "kafka-server-start.sh").is_file():
        raise UserError(f"KAFKA_HOME = {home!r}: there is no bin/kafka-server-start.sh")
    return Path(home).resolve()
