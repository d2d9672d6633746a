"""The `boundgen` command: which subcommands there are, and how errors reach the person at the terminal.

A subcommand's module is imported only when it is called, so that `boundgen --help` answers at once and never
loads torch. This is the one place of the project that imports its own modules by name; the table says which.
Exit status: 0 done, 1 the work itself failed or found something wrong, 2 wrong use or input, 3 nothing
that could be done or compared (replay).
"""

from __future__ import annotations

import importlib
import signal
import sys
from types import FrameType
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from engine.disk import is_full
from engine.errors import ArtifactError, ConfigError, InputError, ItemFileError
from engine.mistakes import in_words
from tools.errors import UserError, told

USER_ERRORS = (UserError, ConfigError, ArtifactError, InputError, ItemFileError, ValidationError)

COMMANDS = {
    "build": ("tools.commands.build", "Compile a model into an artifact that workers load."),
    "items": (
        "tools.commands.items",
        "Compile the items of a beam search, so that workers load them at once.",
    ),
    "worker": ("tools.commands.worker", "Serve pipelines from Kafka until told to stop."),
    "bulk": ("tools.commands.bulk", "Score every row of a JSONL or Parquet file; a kill costs one part."),
    "redrive": ("tools.commands.redrive", "Dead letters back to their topics; a dry run unless told."),
    "capture": ("tools.commands.capture", "Keep requests and their replies in a file, unnoticed by workers."),
    "replay": ("tools.commands.replay", "Run captured requests again and say what is answered differently."),
    "demo": ("tools.commands.demo", "See it work: broker, Redis, model and 60 requests in one command."),
    "doctor": (
        "tools.commands.doctor",
        "Check this machine and a worker's surroundings; say how to mend them.",
    ),
}
BENCHMARKS = {
    "bulk": ("tools.commands.bench_bulk", "Rows a second and peak memory of bulk over a large file."),
    "engine": ("tools.commands.bench_engine", "Samples a second of the engine, beside transformers."),
    "overhead": (
        "tools.commands.bench_overhead",
        "What the worker adds to the model's own time, through Kafka.",
    ),
}


def load(name: str, module: str) -> Any:
    """The command of a module of ours; UserError if a package that it needs is missing or broken."""
    try:
        command = typer.main.get_command(importlib.import_module(module).app)
    except (ImportError, OSError) as error:  # OSError: a shared library of torch that cannot be loaded
        raise UserError(f"{name} cannot start: {error}. Mend it: pip install --upgrade boundgen") from error
    command.name = name
    return command


class LazyCommands(TyperGroup):
    """A group that knows its commands' names and one-line helps, and loads the one that is called."""

    table: ClassVar[dict[str, tuple[str, str]]] = {}

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        listed = {name: TyperCommand(name, help=text) for name, (_, text) in self.table.items()}
        self.commands = {**listed, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.table:
            self.commands[args[0]] = load(args[0], self.table[args[0]][0])
        return super().resolve_command(ctx, args)


class Benchmarks(LazyCommands):
    table = BENCHMARKS


class Boundgen(LazyCommands):
    table = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except USER_ERRORS as error:
            if ctx.params.get("debug"):
                raise
            report(error)
        except OSError as error:  # a disk may fill up under whatever writes
            if ctx.params.get("debug") or not is_full(error):
                raise
            report(UserError(f"{told(error)}; make room and give the command again"))


app = typer.Typer(cls=Boundgen, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
bench = typer.Typer(cls=Benchmarks, no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(bench, name="bench", help="Measure: each prints its method and ends with one JSON line.")


@app.callback(epilog="Start here: [bold]boundgen demo[/]. Every command explains itself with --help.")
def boundgen(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Kafka worker for bounded generation with small decoder-only language models."""


@bench.callback()
def benchmarks() -> None:
    """Measure: each prints its method and ends with one JSON line."""


def report(error: Exception) -> NoReturn:
    """Print one message, without a traceback, and leave with status 2."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    text = explain(error) if isinstance(error, ValidationError) else str(error)
    console.print(f"[bold red]error:[/] {escape(text)}")
    raise typer.Exit(2)


def explain(error: ValidationError) -> str:
    """Each wrong value with its key, what was written there and why that cannot be."""
    lines = [
        f"{'.'.join(map(str, each['loc'])) or error.title} = {each['input']!r}: {in_words(each)}"
        for each in error.errors(include_url=False)
    ]
    return "\n".join(lines)


def main() -> None:
    """The entry point `boundgen`. SIGTERM unwinds as Ctrl-C does: scratch folders and children go."""
    signal.signal(signal.SIGTERM, _leave)
    app(prog_name="boundgen")


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one does not wait
    sys.exit(128 + number)
