"""`boundgen replay`: run captured requests again in this process and say what is answered differently."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from schemas.messages import Outcome
from tools.capture.capture_files import CaptureWriter
from tools.capture.moments import read_moment
from tools.capture.records import CaptureHeader
from tools.capture.run import Capture, Plan
from tools.capture.topic_reader import Span, find_partitions
from tools.commands.capture import connect
from tools.errors import UserError
from tools.replay.differences import Tolerance
from tools.replay.exchanges import CaptureSet
from tools.replay.rerun import Rerunner
from tools.replay.run import Replay
from tools.replay.selection import Selection, read_offsets
from tools.steps import Steps
from worker.config import WorkerConfig, WorkerConfigError, read_worker_config

EXIT_NOTHING = 3  # neither the same nor different, as grep and pytest have a status for nothing found
app = typer.Typer(rich_markup_mode="rich")


class Deadlines(StrEnum):
    """Which clock a request's deadline is held against."""

    NOW = "now"
    KEEP = "keep"


@app.command(
    epilog="Example: [bold]boundgen replay bad-hour.capture worker.yaml[/]; one request in full: "
    "[bold]boundgen replay bad-hour.capture worker.yaml --explain r-7f3a[/]; straight from Kafka: "
    "[bold]boundgen replay --kafka boundgen.relevance.requests --since 15m worker.yaml[/]"
)
def replay(
    captures: Annotated[
        list[Path],
        typer.Argument(
            metavar="CAPTURE",
            help="Files that boundgen capture wrote.",
            default_factory=list,
            show_default=False,
        ),
    ],
    config: Annotated[
        Path, typer.Argument(metavar="WORKER_CONFIG", help="The worker's YAML: pipelines, artifacts of now.")
    ],
    kafka: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Read requests from this topic instead of a file. Repeatable."),
    ] = None,
    replies: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Where their replies are (--kafka); else replies.topics."),
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only requests of this topic. Repeatable.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only of this partition. Repeatable.")] = None,
    offsets: Annotated[str | None, typer.Option(help="Only these offsets: 17, 17-, -40 or 17-40.")] = None,
    since: Annotated[str | None, typer.Option(help="From: 15m (ago), 2026-01-31T10:00, or epoch ms.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this moment.")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="Only this request. Repeatable.")] = None,
    outcome: Annotated[
        list[Outcome] | None, typer.Option(help="Only with this recorded outcome. Repeatable.")
    ] = None,
    error_code: Annotated[
        list[str] | None, typer.Option(help="Only with this recorded error code. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many requests.")] = None,
    abs_tol: Annotated[float, typer.Option(min=0, help="How far apart equal numbers may be ...")] = 1e-3,
    rel_tol: Annotated[
        float, typer.Option(min=0, help="... plus this share of the recorded one. bfloat16 needs more.")
    ] = 1e-3,
    deadlines: Annotated[
        Deadlines,
        typer.Option(help="now: each request has the time it had then. keep: see what would expire now."),
    ] = Deadlines.NOW,
    explain: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show every node's values for this request: prompt, tokens, logits."),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            help="One at a time on one lane, each twice: are the bits the same? Ends with a digest."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line of all findings.")] = False,
) -> None:
    """Run captured requests again and compare with the recorded replies, field by field.

    Runs in this process with the pipelines and artifacts of WORKER_CONFIG, each request as a batch of its own
    (which requests shared a batch then is not recorded; sharing moves numbers only within the tolerance).
    Publishes nothing, joins no group, commits nothing. Requests that expired, were cancelled or were turned
    away for load are run but not compared. Exit status: 0 the same, 1 differences, 2 wrong use or input, 3
    nothing was run or compared: none was selected, none is of a pipeline of WORKER_CONFIG, or none has a
    reply to compare with; so nothing was found the same.
    """
    settings = _read_config(config)
    first_offset, last_offset = read_offsets(offsets)
    selection = Selection(
        topics=frozenset(topic) if topic else None,
        partitions=frozenset(partition) if partition else None,
        first_offset=first_offset,
        last_offset=last_offset,
        since_ms=read_moment("--since", since),
        until_ms=read_moment("--until", until),
        ids=frozenset([*(id_ or []), *([explain] if explain else [])]) or None,
        outcomes=frozenset(outcome) if outcome else None,
        error_codes=frozenset(error_code) if error_code else None,
        limit=limit,
    )
    if bool(captures) == bool(kafka):
        raise UserError("name capture files before the configuration, or topics with --kafka: one of both")
    with _files(captures, kafka, replies, settings, selection) as files:
        found = CaptureSet(files)
        with Steps() as say:
            say("reading " + (", ".join(map(str, files)) if captures else ", ".join(kafka or [])))
            found.index()
            keep = deadlines is Deadlines.KEEP
            with Rerunner(
                settings, found.reply_topics, keep_deadlines=keep, one_lane=deterministic
            ) as rerunner:
                say("running requests again")
                run = Replay(
                    found,
                    rerunner,
                    Tolerance(abs_tol, rel_tol),
                    deterministic=deterministic,
                    explain=explain is not None,
                    say=typer.echo,
                )
                run.run(selection)
                if explain is not None and not run.explained:
                    raise UserError(f"--explain = {explain!r}: no such request among the selected ones")
                models = dict(rerunner.models)
    _tell(run, found, as_json, models)


@contextlib.contextmanager
def _files(
    captures: list[Path],
    kafka: list[str] | None,
    replies: list[str] | None,
    settings: WorkerConfig,
    selection: Selection,
) -> Iterator[list[Path]]:
    """The captures that were named, or one made from Kafka for the time of the run."""
    if captures:
        yield captures
        return
    with tempfile.TemporaryDirectory(prefix="boundgen-replay-") as folder:
        path = Path(folder) / "topics.capture"
        with Steps() as say:
            say(f"capturing {', '.join(kafka or [])}")
            asyncio.run(_capture(path, kafka or [], replies, settings, selection))
        yield [path]


async def _capture(
    path: Path, topics: list[str], replies: list[str] | None, settings: WorkerConfig, selection: Selection
) -> None:
    options = connect(settings, None)
    reply_topics = replies or list(settings.replies.topics)
    found = await find_partitions(options, [*topics, *reply_topics])
    # By outcome is decided later, when replies are known; until then nothing may be left out for the limit.
    decided = selection.outcomes is None and selection.error_codes is None
    plan = Plan(
        topics={each: found[each] for each in topics},
        replies={each: found[each] for each in reply_topics},
        span=Span(selection.since_ms, selection.first_offset, selection.last_offset, selection.partitions),
        keep=selection.wants_request,
        limit=selection.limit if decided else None,
    )
    header = CaptureHeader(
        int(time.time() * 1000), options["bootstrap_servers"], tuple(topics), tuple(reply_topics)
    )
    with CaptureWriter(path, header, rotate_bytes=None, overwrite=False) as writer:
        await Capture(plan, options, writer, asyncio.Event()).run()


def _read_config(path: Path) -> WorkerConfig:
    try:
        return read_worker_config(path)
    except WorkerConfigError as error:
        raise UserError(str(error)) from error


def _tell(run: Replay, found: CaptureSet, as_json: bool, models: dict[str, str]) -> None:
    """For a person on standard error, for scripts as the last line of standard output; the exit status."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    changes = run.changes.found()
    for path, num_bytes in found.cut.items():
        console.print(f"{path}: its last record is incomplete ({num_bytes:,} bytes): left out")
    for line in run.report.lines(changes):
        console.print(line)
    summary = {**run.report.summary(changes), "cut": {str(path): each for path, each in found.cut.items()}}
    summary["models"] = models
    failed = run.report.different > 0
    if run.repeats is not None:
        repeats = run.repeats.summary()
        console.print(
            f"deterministic: {repeats['repeated']:,} repeat to the bit, {repeats['unrepeatable']:,} do not, "
            f"{repeats['as_recorded']:,} equal the recorded reply to the bit; digest {repeats['digest'][:16]}"
        )
        summary["deterministic"] = repeats
        failed = failed or repeats["unrepeatable"] > 0
    if run.explained:
        summary["explained"] = run.explained
    if as_json:
        typer.echo(json.dumps(summary))
    if not run.report.outcomes:
        why = "no selected request is of a pipeline of the configuration"
        console.print(f"nothing was run: {why if run.report.requests else 'no request is selected'}")
        raise typer.Exit(EXIT_NOTHING)
    if failed:
        raise typer.Exit(1)
    if not (run.report.compared or run.repeats or run.explained):
        console.print("nothing was compared: so nothing is known to be the same")
        raise typer.Exit(EXIT_NOTHING)
