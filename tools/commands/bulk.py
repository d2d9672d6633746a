"""`boundgen bulk`: score every row of a file, in bounded memory, so that a kill costs one part."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from tools.bulk.asking import NoProgressError
from tools.bulk.relay import Stop, Stopped
from tools.bulk.run import Scorer, Tally
from tools.bulk.scorers import engine_scorer, workers_scorer
from tools.bulk.setup import Asked, Job, open_workspace, prepare_job, run_job
from tools.bulk.workspace import Workspace
from tools.errors import UserError, told
from tools.steps import Steps

app = typer.Typer(rich_markup_mode="rich")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Via(StrEnum):
    """Who scores."""

    ENGINE = "engine"
    KAFKA = "kafka"


@app.command(
    epilog="Example: [bold]boundgen bulk worker.yaml --input logs.parquet --output scores.parquet "
    "--map title=product_name --id event_id[/]"
)
def bulk(
    config: Annotated[Path, typer.Argument(help="The worker's YAML: it says which pipelines and artifacts.")],
    input: Annotated[  # noqa: A002 - the option's name
        Path,
        typer.Option(help="JSONL (also .gz, .zst) or Parquet; or a directory of parts, read in name order."),
    ],
    output: Annotated[Path, typer.Option(help="The result: .jsonl, .jsonl.gz, .jsonl.zst or .parquet.")],
    pipeline: Annotated[
        str | None, typer.Option(help="Which of the configuration's pipelines, if it has several.")
    ] = None,
    via: Annotated[
        Via, typer.Option(help="engine: load the model here. kafka: ask workers that are running.")
    ] = Via.ENGINE,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN",
            help="The column of a template field; its own name without. Nested columns: a.b. Repeatable.",
        ),
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="The column of row ids; custom_id, else row numbers."),
    ] = None,
    part_rows: Annotated[
        int, typer.Option(min=1, help="Rows scored and kept together: what a kill can cost.")
    ] = 4096,
    prepare_threads: Annotated[int, typer.Option(min=1, help="Threads that tokenize (engine).")] = min(
        4, os.cpu_count() or 1
    ),
    timeout_ms: Annotated[
        int, typer.Option(min=100, help="Deadline of one request, sent again if it expires (kafka).")
    ] = 60_000,
    in_flight: Annotated[
        int, typer.Option(min=1, help="Most requests under way; fewer while workers are busy (kafka).")
    ] = 64,
    restart: Annotated[bool, typer.Option(help="Throw an unfinished run away and begin again.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the output if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line of the counts.")] = False,
) -> None:
    """Score every row of a file: rows in, one result a row out, whatever the file's size.

    A run that was killed goes on where it was when the same command is given again: finished parts lie in
    OUTPUT.bulk until the one final file is put in place. A row that cannot be scored becomes a row with its
    error. Exit status: 0 all scored, 1 some rows failed, 2 wrong use or input, 130 or 143 stopped.
    """
    asked = Asked(
        config=config,
        pipeline=pipeline,
        input=input,
        output=output,
        via=via.value,
        mapped=read_map(map_ or []),
        id_column=id_,
        part_rows=part_rows,
        prepare_threads=prepare_threads,
        timeout_ms=timeout_ms,
        in_flight=in_flight,
        restart=restart,
        overwrite=overwrite,
    )
    stop = Stop()
    job = prepare_job(asked)
    workspace = Workspace(job.output)
    try:
        with catch_signals(stop), workspace:
            tally = score(job, asked, workspace, stop)
    except Stopped:
        tell_stopped(workspace)
        raise typer.Exit(128 + (stop.signal or 0)) from None
    except NoProgressError as error:
        talk().print(f"error: {error}")
        tell_stopped(workspace)
        raise typer.Exit(1) from None
    except OSError as error:
        raise UserError(f"{told(error)}. {done(workspace)}") from error
    report(tally, job, as_json)


def score(job: Job, asked: Asked, workspace: Workspace, stop: Stop) -> Tally:
    """The run itself, over a workspace that is locked."""
    open_workspace(workspace, job, asked)
    if workspace.redone is not None:
        talk().print(workspace.redone)
    with ExitStack() as stack:
        with Steps() as say:  # ends here: a terminal shows one moving line at a time
            scorer = stack.enter_context(open_scorer(job, asked, stop, say))
        going_on = f", going on after {workspace.rows_done:,} rows" if workspace.rows_done else ""
        talk().print(f"scoring {asked.input}{going_on}")
        return run_job(job, asked, scorer, workspace, stop)


def open_scorer(job: Job, asked: Asked, stop: Stop, say: Steps) -> AbstractContextManager[Scorer]:
    """Whoever scores, ready on entry."""
    if asked.via == "kafka":
        say(f"reaching {job.worker.kafka.bootstrap_servers}")
        return workers_scorer(job, asked.timeout_ms, asked.in_flight, stop)
    say(f"loading pipeline {job.pipeline.name}")
    return engine_scorer(job, asked.prepare_threads, stop)


def read_map(written: list[str]) -> dict[str, str]:
    """FIELD=COLUMN pairs; UserError for anything else."""
    mapped: dict[str, str] = {}
    for pair in written:
        field, equals, column = pair.partition("=")
        if not (field and equals and column):
            raise UserError(f"--map = {pair!r}: must be FIELD=COLUMN")
        if field in mapped:
            raise UserError(f"--map = {pair!r}: {field!r} is mapped twice")
        mapped[field] = column
    return mapped


@contextmanager
def catch_signals(stop: Stop) -> Iterator[None]:
    """The first signal ends the run in order; a second one ends the process, which costs no more."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.on_signal(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    mine = SIGNALS if threading.current_thread() is threading.main_thread() else ()  # no other thread may
    before = {each: signal.signal(each, on_signal) for each in mine}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def report(tally: Tally, job: Job, as_json: bool) -> None:
    """The counts for a person on standard error, for scripts as the last line of standard output."""
    console = talk()
    summary = {"output": str(job.output), **tally.summary()}
    console.print(
        f"{tally.rows:,} rows, {tally.failed:,} failed, {summary['rows_per_s']:,} rows/s: {job.output}"
    )
    for code, count in sorted(tally.errors.items()):
        example = tally.examples.get(code)
        console.print(f"  {count:,} {code}" + (f", such as {example}" if example else ""))
    if len(tally.models) > 1:
        console.print(f"  answered by {len(tally.models)} models: {', '.join(sorted(tally.models))}")
    if as_json:
        typer.echo(json.dumps(summary))
    if tally.failed:
        raise typer.Exit(1)


def talk() -> Console:
    """Standard error, for a person; brackets in a path are no markup."""
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def done(workspace: Workspace) -> str:
    """What of a run that failed is kept, and how to go on."""
    if not workspace.rows_done:
        return "No row is done; mend that and give the same command again"
    rows = f"{workspace.rows_done:,} rows are done and kept in {workspace.folder}"
    return f"{rows}; mend that, and the same command goes on from there"


def tell_stopped(workspace: Workspace) -> None:
    """What is done and how to go on."""
    talk().print(f"stopped; {workspace.rows_done:,} rows are done, the same command goes on from there")
