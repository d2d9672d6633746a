"""`boundgen items compile`: an item file in, its compiled form out, with what it takes in memory."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import AutoTokenizer

from engine.beam.compiled_items import is_compiled, read_compiled, write_compiled
from engine.beam.item_set import ItemSet, compile_items
from engine.beam.items import ItemRules
from engine.manifest import TOKENIZER, read_manifest
from engine.store import vocabulary_digest
from tools.errors import UserError
from tools.steps import Steps

app = typer.Typer(rich_markup_mode="rich", no_args_is_help=True)


class Eos(StrEnum):
    """As the beam node's setting."""

    FIXED = "fixed"
    FINISH = "finish"


@app.callback()
def items() -> None:
    """The items that a beam search may find: their file, compiled ahead."""


@app.command(
    "compile",
    epilog="Example: [bold]boundgen items compile items.parquet items.safetensors --artifact artifacts/qwen3 "
    "--steps 4[/]",
)
def compile_(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="Parquet or JSONL with the columns item_id and token_ids.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The compiled form; one that is there is replaced at once.")
    ],
    artifact: Annotated[Path, typer.Option(help="The artifact that will search: its vocabulary.")],
    steps: Annotated[int, typer.Option(min=1, help="Its decode steps: a sequence has one token more.")],
    eos: Annotated[
        Eos,
        typer.Option(help="finish: a shorter sequence ends in an end token. As the pipeline's beam node."),
    ] = Eos.FIXED,
    end_token: Annotated[
        list[int] | None,
        typer.Option(
            help="With --eos finish: an end token's id, repeatable; the tokenizer's own without it."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Check an item file and compile it, so that a worker loads it in seconds where the file takes minutes.

    A pipeline names either of the two. Workers notice when the file changes and swap the new one in without a
    restart; replace it by a rename, as this command does, never by writing into it.
    """
    rules = read_rules(artifact, steps, eos, end_token or [])
    if is_compiled(source):
        raise UserError(f"{source}: is compiled already; name the item file that it came from")
    if out.exists() and out.samefile(source):
        raise UserError(f"OUT = {str(out)!r}: is IN itself, which it would replace; choose another name")
    started = time.perf_counter()
    with Steps() as say:
        say(f"reading and compiling {source}")
        made = compile_items(source, rules)
        say(f"writing {out}")
        write_compiled(out, made, rules)
        say("loading it once, as a worker will")
        loading = time.perf_counter()
        read_compiled(out, rules)
    seconds = {"compile_s": round(loading - started, 2), "load_s": round(time.perf_counter() - loading, 2)}
    found = summary(made, out) | seconds
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in found.items():
        table.add_row(f"[bold]{key}[/]", escape(f"{value:,}" if isinstance(value, int) else str(value)))
    Console(highlight=False).print(table)
    if as_json:
        typer.echo(json.dumps(found))


def read_rules(artifact: Path, steps: int, eos: Eos, end_tokens: list[int]) -> ItemRules:
    """What the artifact's searches can produce; only its manifest and tokenizer are read. UserError."""
    manifest, _ = read_manifest(artifact)
    vocab_size = int(manifest.architecture["vocab_size"])
    tokenizer: Any = None
    if (artifact / TOKENIZER).is_dir():
        tokenizer = AutoTokenizer.from_pretrained(str(artifact / TOKENIZER), local_files_only=True)
    if eos is Eos.FIXED and end_tokens:
        raise UserError(f"--end-token = {end_tokens[0]}: belongs to --eos finish")
    if eos is Eos.FINISH and not end_tokens:
        own = None if tokenizer is None else tokenizer.eos_token_id
        if own is None:
            raise UserError("--eos = 'finish': the artifact's tokenizer names no end token; give --end-token")
        end_tokens = [own]
    vocabulary = None if tokenizer is None else vocabulary_digest(tokenizer)
    return ItemRules(steps + 1, vocab_size, tuple(end_tokens), vocabulary)


def summary(made: ItemSet, out: Path) -> dict[str, Any]:
    """What an operator plans memory with."""
    return {
        "version": made.version,
        "items": made.num_items,
        "sequences": len(made.trie.leaf_nodes),
        "nodes": made.trie.num_nodes,
        "widest_by_level": list(made.trie.max_degree),
        "device_bytes": made.device_bytes,
        "host_bytes": made.host_bytes,
        "file_bytes": out.stat().st_size,
    }
