"""`boundgen capture`: keep what goes through topics in files, without taking part in any group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from engine.pipeline import read_pipeline
from tools.capture.capture_files import CaptureWriter
from tools.capture.moments import read_moment
from tools.capture.records import Captured, CaptureHeader
from tools.capture.run import Capture, Counts, Plan
from tools.capture.topic_reader import Span, find_partitions
from tools.errors import UserError
from tools.steps import Steps
from worker.cluster import connection_options
from worker.config import WorkerConfig, WorkerConfigError, read_worker_config

app = typer.Typer(rich_markup_mode="rich")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@app.command(
    epilog="Example: [bold]boundgen capture boundgen.relevance.requests --replies boundgen.replies "
    "--config worker.yaml --since 15m --output bad-hour.capture[/]"
)
def capture(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Request topics to read.")],
    output: Annotated[Path, typer.Option(help="The file to write; with --rotate-bytes NAME-00001.ext, ...")],
    replies: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Keep the replies to these requests from here. Repeatable."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The worker's YAML: how to reach the brokers; its pipelines are kept in the file, so that a "
            "replay can say what changed in them."
        ),
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Brokers, if no --config says; localhost:9092 without either.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Begin at: 15m (ago), 2026-01-31T10:00 (UTC) or epoch ms. Else the beginning."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Leave out requests from this moment on.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many requests.")] = None,
    follow: Annotated[
        bool, typer.Option(help="Go on with what comes (from now, or --since) until Ctrl-C or --limit.")
    ] = False,
    rotate_bytes: Annotated[
        int | None, typer.Option(min=1 << 10, help="Begin a new file before one grows over this.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files of that name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line of the counts.")] = False,
) -> None:
    """Keep requests, and the replies to them, as the broker has them: bytes, headers, times, places.

    Joins no consumer group and commits nothing, so workers do not notice. Without --follow it ends at what is
    there when it starts. `boundgen replay` runs a capture again; the format is msgpack maps, described in
    tools/capture/records.py. Exit status: 0 done, 2 wrong use or no broker, 130 or 143 stopped early.
    """
    settings = _read_config(config)
    options = connect(settings, bootstrap_servers)
    since_ms, until_ms = read_moment("--since", since), read_moment("--until", until)

    def keep(record: Captured) -> bool:
        later = since_ms is not None and record.timestamp_ms < since_ms
        return not later and (until_ms is None or record.timestamp_ms < until_ms)

    if shared := sorted(set(topics) & set(replies or ())):
        raise UserError(f"--replies = {shared[0]!r}: is among the request topics too")
    with Steps() as say:
        say(f"reaching {options['bootstrap_servers']}")
        found = asyncio.run(find_partitions(options, [*topics, *(replies or ())]))
        header = CaptureHeader(
            captured_ms=int(time.time() * 1000),
            servers=options["bootstrap_servers"],
            topics=tuple(topics),
            replies=tuple(replies or ()),
            pipelines=_pipelines(settings),
        )
        plan = Plan(
            topics={each: found[each] for each in topics},
            replies={each: found[each] for each in replies or ()},
            span=Span(since_ms=since_ms),
            keep=keep,
            limit=limit,
            follow=follow,
        )
        say("capturing" + (" until Ctrl-C" if follow and limit is None else ""))
        with CaptureWriter(output, header, rotate_bytes=rotate_bytes, overwrite=overwrite) as writer:
            counts, stopped_by = asyncio.run(_run(plan, options, writer))
    _report(counts, writer, as_json)
    if stopped_by and not follow:
        raise typer.Exit(128 + stopped_by)


def connect(settings: WorkerConfig | None, bootstrap_servers: str | None) -> dict[str, Any]:
    """aiokafka's connection arguments; UserError where two say where the brokers are, ConfigError."""
    if settings is None:
        return {"bootstrap_servers": bootstrap_servers or "localhost:9092"}
    if bootstrap_servers is not None:
        raise UserError(f"--bootstrap-servers = {bootstrap_servers!r}: --config says that already")
    return connection_options(settings.kafka)


async def _run(plan: Plan, options: Mapping[str, Any], writer: CaptureWriter) -> tuple[Counts, int]:
    """The counts, and the signal that ended it (0: none)."""
    stop = asyncio.Event()
    with _signals(stop) as got:
        counts = await Capture(plan, options, writer, stop).run()
    return counts, got[0] if got else 0


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[list[int]]:
    """The first signal ends the capture in order."""
    got: list[int] = []
    loop = asyncio.get_running_loop()
    mine = SIGNALS if threading.current_thread() is threading.main_thread() else ()  # no other thread may

    def on_signal(number: int) -> None:
        got.append(number)
        stop.set()

    for each in mine:
        loop.add_signal_handler(each, on_signal, each)
    try:
        yield got
    finally:
        for each in mine:
            loop.remove_signal_handler(each)


def _read_config(path: Path | None) -> WorkerConfig | None:
    if path is None:
        return None
    try:
        return read_worker_config(path)
    except WorkerConfigError as error:
        raise UserError(str(error)) from error


def _pipelines(settings: WorkerConfig | None) -> dict[str, Any]:
    """Each pipeline as plain values."""
    found = [read_pipeline(each.config) for each in settings.pipelines] if settings else []
    return {each.name: each.model_dump(mode="json") for each in found}


def _report(counts: Counts, writer: CaptureWriter, as_json: bool) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    names = ", ".join(map(str, writer.files))
    console.print(
        f"{counts.requests:,} requests, {counts.replies:,} replies, {writer.num_bytes:,} bytes: {names}"
    )
    for digest, count in counts.models.items():
        console.print(f"  {count:,} answers by model {digest[:12]}")
    if as_json:
        files = [str(each) for each in writer.files]
        typer.echo(json.dumps({"files": files, "bytes": writer.num_bytes, **vars(counts)}))
