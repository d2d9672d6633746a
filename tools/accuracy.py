"""What the command line says about accuracy: which texts, and the table of what was measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from engine.build.spec import Calibration
from engine.pipeline_config import read_pipeline
from engine.quant.budget import Budget
from engine.quant.times import TOKENS
from tools.errors import UserError

DEMO = "demo"  # texts of our own making: 208 relevance requests of three products, 320 searches


def read_calibration(
    name: str | None, pipelines: Sequence[Path], budget: Budget, option: str = "--calibrate"
) -> Calibration | None:
    """`name`: a file, or "demo" for what the demo ships. UserError where the pipeline is missing; `option`:
    what the name was given as."""
    if name is None:
        if pipelines:
            raise UserError(f"--pipeline goes with {option}, which names the requests")
        return None
    if name == DEMO:
        shipped = [Path(str(files("configs").joinpath(f"{each}.yaml"))) for each in ("relevance", "intent")]
        path = Path(str(files("tools.demo").joinpath("calibration.jsonl")))
        return Calibration(path, tuple(map(read_pipeline, pipelines or shipped)), budget)
    if not pipelines:
        raise UserError(f"{option} = {name!r}: needs --pipeline, whose template makes its requests texts")
    return Calibration(Path(name), tuple(map(read_pipeline, pipelines)), budget)


def accuracy_table(accuracy: Mapping[str, Any]) -> Table:
    """The manifest's account: emulated plans, what was chosen, and the artifact itself as measured. Fits the
    80 columns of a log."""
    budget, measured = accuracy["budget"], accuracy["measured"]
    searched = any(each.get("ranks") for each in (measured, *(p["agreement"] for p in accuracy["plans"])))
    allowed = f"shift {budget['label_shift']:g}, KL {budget['kl']:g}"
    title = f"emulated plans against float32 on {measured['texts']} texts; budget: {allowed}"
    columns = ["", "label shift", "KL", "same label", "8 bits", "speed"]
    if searched:
        title += f", winners {budget['winners']:g}"
        columns.append("winners")
    table = Table(*columns, title=title, caption=escape("; ".join((accuracy["method"], *accuracy["notes"]))))
    for plan in accuracy["plans"]:
        cells, winners = agreement_cells(plan["agreement"])
        share, speed = f"{plan['eight_bits']:.0%}", f"{plan['speed']:.2f}x"
        table.add_row(plan["name"], *cells, share, speed, *([winners] if searched else []))
    cells, winners = agreement_cells(measured)
    table.add_row("this artifact", *cells, "", "", *([winners] if searched else []))
    return table


def times_table(times: Mapping[str, Any]) -> Table:
    """What the choice took eight bits to save of a layer's time, by kind of matrix."""
    saved, exact, layer = times["saved"], times["exact"], times["layer"]
    schemes = list(dict.fromkeys(scheme for each in saved.values() for scheme in each))
    batches = ", ".join(f"{count:,}" for count in times["batches"])
    source = times["source"] + (f", batches of {batches} tokens" if batches else "")
    title = f"eight bits save of a layer (in bf16 {layer:,.0f} us for {TOKENS:,} tokens)"
    table = Table("", *schemes, "exact scales cost", title=title, caption=escape(source))
    for kind, each in saved.items():
        cells = [f"{each[scheme] / layer:.1%}" if scheme in each else "-" for scheme in schemes]
        table.add_row(kind, *cells, f"{exact[kind] / layer:.1%}" if kind in exact else "-")
    return table


def agreement_cells(agreement: Mapping[str, Any]) -> tuple[list[str], str]:
    """An Agreement's numbers as the table shows them, and its winners; a dash where texts have no labels, or
    nothing was searched."""
    shift, same = agreement["label_shift"], agreement["label_agreement"]
    ranks = agreement.get("ranks")
    cells = [
        "-" if shift is None else f"{shift:.4f}",
        f"{agreement['next_token_kl']:.5f}",
        "-" if same is None else f"{same:.3f}",
    ]
    return cells, "-" if ranks is None else f"{ranks['winners']:.3f}"
