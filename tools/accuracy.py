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


def read_calibration(name: str | None, pipelines: Sequence[Path], budget: Budget) -> Calibration | None:
    """`name`: a file, or "demo" for what the demo ships. UserError where the pipeline is missing."""
    if name is None:
        if pipelines:
            raise UserError("--pipeline goes with --calibrate, which names the requests")
        return None
    if name == DEMO:
        shipped = [Path(str(files("configs").joinpath(f"{each}.yaml"))) for each in ("relevance", "intent")]
        path = Path(str(files("tools.demo").joinpath("calibration.jsonl")))
        return Calibration(path, tuple(map(read_pipeline, pipelines or shipped)), budget)
    if not pipelines:
        raise UserError(f"--calibrate = {name!r}: needs --pipeline, whose template makes its requests texts")
    return Calibration(Path(name), tuple(map(read_pipeline, pipelines)), budget)


def accuracy_table(accuracy: Mapping[str, Any]) -> Table:
    """The manifest's account: emulated plans, what was chosen, and the artifact itself as measured."""
    budget = accuracy["budget"]
    title = f"against float32; budget: shift {budget['label_shift']:g}, KL {budget['kl']:g}"
    columns = ["", "label shift", "next-token KL", "same label", "texts", "winners", "8 bits", "speed"]
    table = Table(*columns, title=title)
    for plan in accuracy["plans"]:
        share, speed = f"{plan['eight_bits']:.0%}", f"{plan['speed']:.2f}x"
        table.add_row(f"{plan['name']} (emulated)", *agreement_cells(plan["agreement"]), share, speed)
    table.add_row("this artifact", *agreement_cells(accuracy["measured"]), "", "")
    table.caption = escape("; ".join((accuracy["method"], *accuracy["notes"])))
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


def agreement_cells(agreement: Mapping[str, Any]) -> list[str]:
    """An Agreement's numbers as the table shows them; a dash where the texts have no labels, or nothing was
    searched."""
    shift, same = agreement["label_shift"], agreement["label_agreement"]
    ranks = agreement.get("ranks")
    return [
        "-" if shift is None else f"{shift:.4f}",
        f"{agreement['next_token_kl']:.5f}",
        "-" if same is None else f"{same:.3f}",
        str(agreement["texts"]),
        "-" if ranks is None else f"{ranks['winners']:.3f}",
    ]
