"""`boundgen demo`: the whole thing on one machine, with nothing but pip, checked by counting."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engine.beam.bounds import BeamBounds
from engine.packed import BatchBounds
from tools.artifact_cache import Wanted, cached_artifact
from tools.demo.queries import read_queries
from tools.demo.run import Result, run_demo, start_servers
from tools.demo.table import make_table
from tools.demo.tally import differences, summarise
from tools.errors import UserError
from tools.model_cache import smollm2_gguf
from tools.processes import ChildError
from tools.steps import Steps

app = typer.Typer(rich_markup_mode="rich")
BOUNDS = BatchBounds(samples=64, tokens=4096, tokens_per_sample=512)  # what configs/ ask of smollm2
BEAM = BeamBounds(width=100, steps=4, prompts=8)  # more than recall asks: the tests search wider
TABLE_COLUMNS = 132  # where standard output is no terminal


@app.command(epilog="Example: [bold]boundgen demo --json[/]")
def demo(
    model: Annotated[
        Path | None,
        typer.Option(exists=True, help="A GGUF file or Hugging Face directory; SmolLM2-135M without it."),
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Use this Kafka instead of the embedded broker: host:port,...")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Use this Redis instead of the embedded one: redis://host:port/0")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line of the counts.")] = False,
) -> None:
    """See boundgen work: a broker, Redis, a real model, a real worker process and 60 requests.

    The first run fetches a 93 MB model and compiles it, which takes minutes; later runs take less than one
    and a half. Among the 60 shopping queries are some whose deadline has passed, some cancelled while they
    wait, some malformed and some too large: the counts at the end show what became of each. Exit status 1
    if any count is not as it should be. Everything that was started is stopped again.
    """
    queries = read_queries()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boundgen-demo-")))
        say = stack.enter_context(Steps())
        source = model or smollm2_gguf(say=say)
        artifact = cached_artifact(Wanted(source, "smollm2", "cpu", None, BOUNDS, beam=BEAM), say=say)
        say("starting broker and Redis")
        try:
            servers = start_servers(stack, folder, bootstrap_servers, redis_url)
            result = run_demo(servers, artifact, folder, queries, say)
        except ChildError as error:
            raise UserError(str(error)) from error
    show(result)
    if as_json:
        typer.echo(json.dumps(asdict(summarise(result.answers, result.worker))))
    if problems(result):
        raise typer.Exit(1)


def problems(result: Result) -> list[str]:
    """What is not as it must be, the worker's exit included."""
    found = differences(result.answers, result.worker)
    if result.exit_status != 0:
        found.append(f"the worker ended with status {result.exit_status} after SIGTERM, expected 0")
    return found


def show(result: Result) -> None:
    """The table and, on standard error, what went wrong with the worker's last words."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=TABLE_COLUMNS)
    console.print(make_table(result.answers))
    found = problems(result)
    if found:
        errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        errors.print("The demo did not go as it must:", *found, sep="\n  ")
        errors.print(result.worker_log)
