"""`boundgen bench bulk`: what reading, writing and safety cost beside the model."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.bulk_engine import SAMPLES_A_REQUEST, compare
from tools.bench.bulk_files import FileRun, configure, run_file, write_input
from tools.bench.overhead_run import Load
from tools.bench.provenance import provenance
from tools.commands.demo import BEAM, BOUNDS
from tools.model_cache import smollm2_gguf
from tools.steps import Steps

app = typer.Typer(rich_markup_mode="rich")


@app.command(epilog="Example: [bold]boundgen bench bulk --rows 100000 --rows 1000000 --json[/]")
def bulk(
    rows: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Rows of a Parquet file; repeatable. 100,000 and 1,000,000."),
    ] = None,
    sleep_ms: Annotated[float, typer.Option(min=0, help="What a batch takes in the model's place.")] = 5,
    lanes: Annotated[int, typer.Option(min=1, help="Batches that may sleep at once.")] = 1,
    requests: Annotated[
        int, typer.Option(min=0, help=f"Requests of {SAMPLES_A_REQUEST} samples for the real model; 0: none.")
    ] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds with the real model, in turns.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the real model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Measure `boundgen bulk`: with a model that only sleeps over large files, and beside `bench engine`.

    First Parquet files of the demo's queries go through a tokenizer and a model node of a fixed cost: rows a
    second, peak memory, share of the time that reading and writing take. It is flat if the peak does not grow
    with the file. Then the same samples go through the bare engine and through bulk, in turns.
    """
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="boundgen-bench-") as name, Steps() as say:
        folder = Path(name)
        source = smollm2_gguf(say=say)
        artifact = cached_artifact(Wanted(source, "smollm2", "cpu", None, BOUNDS, beam=BEAM), say=say)
        config = configure(folder, artifact, Load(0, 0, sleep_ms, lanes))
        files = []
        for count in rows or [100_000, 1_000_000]:
            say(f"writing {count:,} rows")
            source = folder / f"rows-{count}.parquet"
            write_input(source, count)
            say(f"scoring {count:,} rows")
            files.append(run_file(config, source, count))
            source.unlink()
            console.print(file_line(files[-1]))
        found: dict[str, object] = {"files": [each.numbers() for each in files]}
        if requests:
            say("bulk and the bare engine with the real model, in turns")
            sides = compare(artifact, folder, requests, rounds, threads or os.cpu_count() or 1)
            console.print(
                f"real model: engine {sides.engine:.2f} samples/s, bulk {sides.bulk:.2f}: {sides.ratio:.1%}"
            )
            found |= {
                "engine_samples_per_s": round(sides.engine, 2),
                "bulk_samples_per_s": round(sides.bulk, 2),
                "ratio": round(sides.ratio, 3),
            }
    if as_json:
        told = {"benchmark": "bulk", "sleep_ms": sleep_ms, "lanes": lanes}
        typer.echo(json.dumps({**told, **found, **provenance("cpu")}))


def file_line(run: FileRun) -> str:
    """For a person."""
    return (
        f"{run.rows:,} rows: {run.rows_per_s:,.0f} rows/s, peak {run.peak_mb:,.0f} MB, "
        f"reading and writing {run.share:.1%} of the time, "
        f"{run.numbers()['read_cpu_us_a_row']} and {run.numbers()['write_cpu_us_a_row']} us CPU a row"
    )
