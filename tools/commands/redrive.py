"""`boundgen redrive`: dead letters back to the topics they came from; a dry run unless told to send."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from engine.pipeline import read_pipeline
from schemas.deadletter import dead_letter_topic
from tools.broker_state import Options
from tools.errors import UserError
from tools.redrive.letters import Letter
from tools.redrive.run import Plan, redrive
from tools.redrive.selection import Selection, Span, read_offsets, read_pattern, read_place, read_time
from tools.redrive.sending import Destination
from tools.redrive.tally import Left, Tally
from worker.cluster import connection_options
from worker.config import WorkerConfig, WorkerConfigError, read_worker_config

app = typer.Typer(rich_markup_mode="rich")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@app.command(
    "redrive",
    epilog="Example: [bold]boundgen redrive boundgen.intent.requests-dlt --bootstrap-servers localhost:9092 "
    "--message 'v: missing' --send[/]",
)
def main(
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Dead letter topics; with --config all those of its pipelines.", metavar="TOPIC"),
    ] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="The cluster, host:port,...")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A worker's YAML instead: cluster, security and pipelines.")
    ] = None,
    send: Annotated[bool, typer.Option("--send", help="Do it. Without this nothing is written.")] = False,
    exception: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Those whose exception class has this.")
    ] = None,
    message: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Those whose exception message has this.")
    ] = None,
    original_topic: Annotated[
        list[str] | None, typer.Option(help="Those that come from this topic. Repeatable.")
    ] = None,
    id_: Annotated[
        list[str] | None, typer.Option("--id", help="Those with this request id, if readable. Repeatable.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Dead letters since then: ISO 8601 or epoch ms.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Dead letters from before then.")] = None,
    partition: Annotated[
        list[str] | None, typer.Option(metavar="[TOPIC:]N", help="This partition only. Repeatable.")
    ] = None,
    from_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="[TOPIC:]N=OFFSET", help="Where to begin in partition N. Repeatable."),
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="[TOPIC:]N=OFFSET", help="Where to end, this offset excluded. Repeatable."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Send at most so many.")] = None,
    rate: Annotated[float, typer.Option(min=0, help="Send at most so many a second; 0: no limit.")] = 50.0,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="What has been a dead letter this often stays one.")
    ] = 3,
    list_: Annotated[bool, typer.Option("--list", help="One line for each selected dead letter.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line of the counts.")] = False,
) -> None:
    """Send dead letters back to the topics they came from; a dry run unless --send is given.

    Key, partition, value and headers are as they were, the timestamp is now: a timeout_ms counts anew, a
    deadline_ms does not. The dead letters stay where they are and no group is joined: a second run would
    send them again, so each run ends with the --from-offset options that go on behind it. Exit status: 0
    done, 1 some selected ones stay or Kafka failed, 2 wrong use, 130 or 143 stopped.
    """
    selection = Selection(
        exception=read_pattern(exception, "--exception"),
        message=read_pattern(message, "--message"),
        original_topics=frozenset(original_topic or ()),
        ids=frozenset(id_ or ()),
        since_ms=read_time(since, "--since"),
        until_ms=read_time(until, "--until"),
    )
    span = Span(
        partitions=tuple(read_place(each, "--partition") for each in partition or ()),
        starts=read_offsets(from_offset or (), "--from-offset"),
        ends=read_offsets(to_offset or (), "--to-offset"),
    )
    options, every = connect(config, bootstrap_servers, topics or [])
    plan = Plan(every, span, selection, send, max_attempts, rate, limit)
    tally, number = asyncio.run(run(options, plan, list_))
    report(tally, plan, as_json)
    if number is not None:
        raise typer.Exit(128 + number)
    if tally.left or tally.error is not None:
        raise typer.Exit(1)


def connect(
    path: Path | None, bootstrap_servers: str | None, topics: list[str]
) -> tuple[Options, tuple[str, ...]]:
    """Connection arguments and dead letter topics, each once. UserError."""
    if (path is None) == (bootstrap_servers is None):
        raise UserError("name the cluster: either --bootstrap-servers or --config")
    if path is not None:
        try:
            config = read_worker_config(path)
        except WorkerConfigError as error:
            raise UserError(str(error)) from error
        return connection_options(config.kafka), tuple(dict.fromkeys(topics or dead_letter_topics(config)))
    if not topics:
        raise UserError("name the dead letter topics; with --config they are those of its pipelines")
    return {"bootstrap_servers": bootstrap_servers, "client_id": "boundgen"}, tuple(dict.fromkeys(topics))


def dead_letter_topics(config: WorkerConfig) -> list[str]:
    """Of each pipeline, as its worker names them. ConfigError."""
    requests = [
        each.topic or f"boundgen.{read_pipeline(each.config).name}.requests" for each in config.pipelines
    ]
    return [dead_letter_topic(topic) for topic in requests]


async def run(options: Options, plan: Plan, listed: bool) -> tuple[Tally, int | None]:
    """The run, and the signal that ended it."""
    stop, caught = asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        caught.append(number)
        stop.set()
        for each in SIGNALS:  # a second one ends the process
            loop.remove_signal_handler(each)

    if threading.current_thread() is threading.main_thread():  # no other thread may
        for each in SIGNALS:
            loop.add_signal_handler(each, on_signal, each)
    tally = await redrive(options, plan, stop, tell if listed else ignore)
    return tally, caught[0] if caught and tally.stopped == "signal" else None


def ignore(letter: Letter, fate: Destination | Left) -> None:
    """Without --list."""


def tell(letter: Letter, fate: Destination | Left) -> None:
    """One letter as one JSON line: where it is, what it is, where it goes or why it stays."""
    origin = letter.origin
    goes = isinstance(fate, Destination)
    line: dict[str, Any] = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "id": letter.request_id,
        "attempts": None if origin is None else origin.attempts,
        "exception": None if origin is None else origin.exception_class,
        "message": None if origin is None else origin.message,
        "to": [fate.topic, fate.partition] if isinstance(fate, Destination) else None,
        "stays": None if goes else fate,
    }
    typer.echo(json.dumps(line))


def report(tally: Tally, plan: Plan, as_json: bool) -> None:
    """For a person on standard error, for scripts as the last line of standard output."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    for line in tally.lines(not plan.send):
        console.print(line)
    if tally.error is not None:
        console.print(f"error: {tally.error}")
    if tally.stopped == "limit":
        console.print(f"stopped at --limit {plan.limit}")
    if not plan.send:
        console.print("a dry run: nothing was written; --send does it")
    if plan.send or tally.stopped or tally.error:
        console.print(f"go on behind this with: {tally.going_on()}")
    if as_json:
        typer.echo(json.dumps(tally.summary(not plan.send)))
