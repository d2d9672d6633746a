"""Options of `boundgen bench engine --shape`, as they stand beside those of the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.beam.bounds import MAX_STEPS, MAX_WIDTH
from tools.bench.mixes import MIXES

PANEL = "With --shape"

Shape = Annotated[
    str | None,
    typer.Option(
        help="Instead: random weights of this shape (qwen3-0.6b, qwen2.5-0.5b, smollm2-135m) on CUDA, "
        "against the card's physics."
    ),
]
BEAMS = "With --pipeline beam"
Searching = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        help="beam: instead, searches of --shape on CUDA, short and long prompts, the whole vocabulary.",
    ),
]
BeamWidth = Annotated[int, typer.Option(min=1, max=MAX_WIDTH, help="Beams a prompt.", rich_help_panel=BEAMS)]
BeamSteps = Annotated[int, typer.Option(min=1, max=MAX_STEPS, help="Decode steps.", rich_help_panel=BEAMS)]
Items = Annotated[int, typer.Option(min=0, help="Legal sequences: what so many cost.", rich_help_panel=BEAMS)]
Lanes = Annotated[int, typer.Option(min=1, help="Threads with graphs of their own.", rich_help_panel=PANEL)]
TokenCounts = Annotated[
    str | None,
    typer.Option(
        "--tokens", help="Token counts that are timed one by one: 1024,4096.", rich_help_panel=PANEL
    ),
]
Lengths = Annotated[
    str | None, typer.Option(help="Of their samples: mixed,128 or one of them.", rich_help_panel=PANEL)
]
Mixes = Annotated[
    str | None, typer.Option(help=f"Closed loops of these: {','.join(MIXES)}.", rich_help_panel=PANEL)
]
InFlight = Annotated[str | None, typer.Option(help="Requests of a loop: 1,4,8.", rich_help_panel=PANEL)]
Seconds = Annotated[float, typer.Option(min=0.1, help="Of each closed loop.", rich_help_panel=PANEL)]
Sustained = Annotated[
    float, typer.Option(min=0.1, help="Seconds back to back of each token count.", rich_help_panel=PANEL)
]
Classes = Annotated[
    bool, typer.Option("--classes/--no-classes", help="Share of time by kernel.", rich_help_panel=PANEL)
]
Chart = Annotated[
    Path | None,
    typer.Option(
        help="An SVG of the loops' throughput against latency, of this run or of --from.",
        rich_help_panel=PANEL,
    ),
]
Results = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", help="Draw what such runs wrote, measure nothing; repeatable.", rich_help_panel=PANEL
    ),
]
