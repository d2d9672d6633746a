"""Options of `boundgen bench engine --shape`, as they stand beside those of the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.bench.mixes import MIXES

WITH_SHAPE = "With --shape"

Shape = Annotated[
    str | None,
    typer.Option(
        help="Instead: random weights of this shape (qwen3-0.6b, qwen2.5-0.5b, smollm2-135m) on CUDA, "
        "against the card's physics."
    ),
]
Lanes = Annotated[int, typer.Option(min=1, help=f"{WITH_SHAPE}.")]
TokenCounts = Annotated[
    str | None,
    typer.Option("--tokens", help=f"{WITH_SHAPE}: token counts that are timed one by one, 1024,4096."),
]
Lengths = Annotated[
    str | None, typer.Option(help=f"{WITH_SHAPE}: lengths of their samples, mixed,128 or one of them.")
]
Mixes = Annotated[
    str | None, typer.Option(help=f"{WITH_SHAPE}: closed loops of these alone; of {', '.join(MIXES)}.")
]
InFlight = Annotated[str | None, typer.Option(help=f"{WITH_SHAPE}: requests in flight of the loops, 1,4,8.")]
Seconds = Annotated[float, typer.Option(min=0.1, help=f"{WITH_SHAPE}: of each closed loop.")]
Sustained = Annotated[
    float, typer.Option(min=0.1, help=f"{WITH_SHAPE}: seconds back to back of each token count.")
]
Classes = Annotated[
    bool,
    typer.Option("--classes/--no-classes", help=f"{WITH_SHAPE}: share of time by kernel."),
]
Chart = Annotated[
    Path | None,
    typer.Option(help=f"{WITH_SHAPE} or --from: an SVG of throughput against latency, written here."),
]
Results = Annotated[
    list[Path] | None,
    typer.Option("--from", help="With --chart: draw what such runs wrote, measure nothing. Repeatable."),
]
