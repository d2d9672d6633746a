"""`boundgen bench engine`: samples a second of the engine, beside transformers, same machine and model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from engine.packed import BatchBounds
from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.beam_engine import BEAM_SHAPE, BeamSetup, bench_beams, make_setup
from tools.bench.beam_run import BeamLoads
from tools.bench.engine_compare import Setup, compare
from tools.bench.load_chart import draw_results, read_result
from tools.bench.prefix_engine import PrefixSetup, bench_prefixes
from tools.bench.shape_engine import bench_shape
from tools.bench.shape_setup import ShapeSetup, read_lists
from tools.bench.workload import MAX_TOKENS
from tools.commands.build import Kernels, Precision
from tools.commands.demo import BOUNDS
from tools.commands.shape_options import (
    PANEL,
    BeamSteps,
    BeamWidth,
    Chart,
    Classes,
    InFlight,
    Items,
    Lanes,
    Lengths,
    Mixes,
    Results,
    Searching,
    Seconds,
    Shape,
    Sustained,
    TokenCounts,
)
from tools.errors import UserError
from tools.model_cache import smollm2_gguf
from tools.steps import Steps

app = typer.Typer(rich_markup_mode="rich")


class Device(StrEnum):
    """Where both sides run."""

    CPU = "cpu"
    CUDA = "cuda"


GEMM_SIZE = {Device.CPU: 2048, Device.CUDA: 8192}


class Peer(StrEnum):
    """What the engine is compared with."""

    TRANSFORMERS = "transformers"


@app.command(epilog="Example: [bold]boundgen bench engine --device cpu --peer transformers --json[/]")
def engine(
    device: Annotated[Device, typer.Option(help="Where both sides run.")] = Device.CPU,
    peer: Annotated[Peer, typer.Option(help="What to compare with.")] = Peer.TRANSFORMERS,
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file or Hugging Face directory; SmolLM2-135M without it.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests a round.")] = 4,
    samples: Annotated[int, typer.Option(min=1, help="Samples a request.")] = 15,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side, taken in turns.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each side; all CPUs.")] = None,
    seed: Annotated[int, typer.Option(help="Of the lengths and token ids.")] = 20,
    shape: Shape = None,
    prefixes: Annotated[
        bool,
        typer.Option(
            help="Instead: a request whose samples share 64 of their 150 tokens, 40 of these constant; with "
            "and without computing them once."
        ),
    ] = False,
    precision: Annotated[
        Precision,
        typer.Option(help="bf16, fp8 or, but for beams, int8, of the matrices.", rich_help_panel=PANEL),
    ] = Precision.FP8,
    kernels: Annotated[
        Kernels, typer.Option(help="Portable ones alone: to compare.", rich_help_panel=PANEL)
    ] = Kernels.FASTEST,
    lanes: Lanes = ShapeSetup.lanes,
    tokens: TokenCounts = None,
    lengths: Lengths = None,
    mixes: Mixes = None,
    in_flight: InFlight = None,
    seconds: Seconds = ShapeSetup.seconds,
    sustained: Sustained = ShapeSetup.sustained,
    classes: Classes = True,
    pipeline: Searching = None,
    beam_width: BeamWidth = BeamLoads.width,
    beam_steps: BeamSteps = BeamLoads.steps,
    items: Items = BeamLoads.items,
    chart: Chart = None,
    results: Results = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Compare the engine's samples/s with transformers: same model, threads, samples, in one run.

    The peer computes one padded batch a request and only the last position's logits, in whichever of two ways
    is faster. A compiled artifact is built at the first run (a minute or two) and kept.
    """
    if results is not None:
        if chart is None:
            raise UserError("--from: without --chart there is nothing to do")
        draw_results([read_result(path) for path in results], chart)
        return
    _refuse_idle(
        {"chart": chart, "tokens": tokens, "lengths": lengths},
        {"mixes": mixes, "in-flight": in_flight},
        pipeline, shape,
    )  # fmt: skip
    if pipeline is not None:
        if pipeline != "beam":
            raise UserError(f"--pipeline = {pipeline!r}: must be beam")
        given = read_lists({"mixes": mixes, "in_flight": in_flight}) | {"lanes": lanes, "seconds": seconds}
        given |= {"sustained": sustained, "classes": classes, "width": beam_width, "steps": beam_steps}
        given |= {"shape": shape or BEAM_SHAPE, "precision": precision.value, "items": items}
        _bench_beams(make_setup(given), as_json)
        return
    if shape is not None:
        lists = {"tokens": tokens, "lengths": lengths, "mixes": mixes, "in_flight": in_flight}
        numbers = {"lanes": lanes, "seconds": seconds, "sustained": sustained, "classes": classes}
        given = read_lists(lists) | numbers
        _bench_shape(ShapeSetup(shape, precision.value, kernels.value, **given), chart, as_json)
        return
    if device is Device.CUDA and not torch.cuda.is_available():
        raise UserError("--device = 'cuda': torch sees no CUDA device; boundgen doctor says more")
    console = Console(highlight=False, soft_wrap=True)
    with Steps() as say:
        source = model or smollm2_gguf(say=say)
        name = "smollm2" if model is None else "bench"
        artifact = cached_artifact(Wanted(source, name, device.value, None, bounds(samples)), say=say)
        threads = threads or os.cpu_count() or 1
        if prefixes:
            asked = PrefixSetup(artifact, device.value, samples, rounds, threads, seed)
            saved = bench_prefixes(asked, say, console.print)
            if as_json:
                typer.echo(json.dumps(saved))
            return
        setup = Setup(
            source=source,
            artifact=artifact,
            device=device.value,
            requests=requests,
            samples=samples,
            rounds=rounds,
            threads=threads,
            seed=seed,
            gemm_size=GEMM_SIZE[device],
        )
        found = compare(setup, say, console.print)
    ratio, without = found["ratio"], found["ratio_per_computed_token"]
    console.print(
        f"ratio: {ratio} times the samples/s of {peer.value}; {without} if its padding counted as work"
    )
    if as_json:
        typer.echo(json.dumps(found))


def _refuse_idle(
    of_shapes: Mapping[str, object], of_both: Mapping[str, object], pipeline: str | None, shape: str | None
) -> None:
    """UserError for an option that this run would not look at."""
    for name, value in {**of_shapes, **of_both}.items():
        if value is not None and pipeline is not None and name in of_shapes:
            raise UserError(f"--{name}: does not go with --pipeline {pipeline}")
        if value is not None and pipeline is None and shape is None:
            raise UserError(f"--{name}: goes with --shape")
    chart = of_shapes["chart"]
    if isinstance(chart, Path) and not chart.absolute().parent.is_dir():
        raise UserError(f"--chart = {str(chart)!r}: there is no such folder")


def _bench_beams(setup: BeamSetup, as_json: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    with Steps() as say:
        found = bench_beams(setup, say, console.print)
    if as_json:
        typer.echo(json.dumps(found))


def _bench_shape(setup: ShapeSetup, chart: Path | None, as_json: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    with Steps() as say:
        found = bench_shape(setup, say, console.print)
    if as_json:
        typer.echo(json.dumps(found))
    if chart is not None:
        draw_results([found], chart)


def bounds(samples: int) -> BatchBounds:
    """The demo's artifact where it is large enough for one request, however long its samples."""
    most = max(BOUNDS.samples, samples), max(BOUNDS.tokens, samples * MAX_TOKENS)
    return BatchBounds(samples=most[0], tokens=most[1], tokens_per_sample=BOUNDS.tokens_per_sample)
