"""`bench engine --shape`: a model of a benchmarked shape through its own artifact, lanes and graphs, on CUDA.

Prints the physics, the card's ceilings, what loading took, then each token count and the closed loops; all of
it is in the returned map too. Weights are random: speed and memory are those of a real model. Also
`python -m tools.bench.shape_engine --shape qwen3-0.6b --precision fp8`, where only the engine is installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.artifact import Artifact
from engine.runtime.graph_lanes import GraphLanePool
from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.card import CudaCard, card_uuid
from tools.bench.card_state import CardMonitor
from tools.bench.load_chart import draw_results, read_result
from tools.bench.script import run_script, say
from tools.bench.shape_checkpoint import shape_checkpoint
from tools.bench.shape_run import measure
from tools.bench.shape_setup import BOUNDS, ShapeSetup, read_lists
from tools.bench.shapes import SHAPES
from tools.errors import UserError
from tools.model_cache import cache_root

Say = Callable[[str], None]
LISTS = ("tokens", "lengths", "mixes", "in_flight")


def bench_shape(setup: ShapeSetup, stage: Say, line: Say) -> dict[str, Any]:
    """Everything that is measured; `stage` hears each as it begins, `line` the lines of the report."""
    if not torch.cuda.is_available():
        raise UserError(
            "--shape: is measured on CUDA, and torch sees no CUDA device; boundgen doctor says more"
        )
    stage("writing a random checkpoint")
    model = shape_checkpoint(setup.shape, SHAPES[setup.shape], cache_root(), "cuda")
    wanted = Wanted(model, setup.shape, "cuda", None, BOUNDS, setup.precision, setup.kernels)
    stage("building its artifact, unless it is kept from before")
    artifact = Artifact.open(cached_artifact(wanted, say=stage), device="cuda")
    stage("capturing graphs")
    pool = artifact.open_lanes(setup.lanes)
    assert isinstance(pool, GraphLanePool)
    try:
        with CardMonitor(card_uuid()) as monitor:
            return measure(setup, artifact, pool, CudaCard(monitor), stage, line)
    finally:
        pool.close()


def main(arguments: list[str]) -> None:
    options = vars(_parser().parse_args(arguments))
    chart, results = options.pop("chart"), options.pop("results")
    if results is not None:
        if chart is None:
            raise UserError("--from: without --chart there is nothing to do")
        draw_results([read_result(path) for path in results], chart)
        return
    given = read_lists({key: options.pop(key) for key in LISTS})
    given |= {key: value for key, value in options.items() if value is not None}
    found = bench_shape(ShapeSetup(**given), say, say)
    say(json.dumps(found))
    if chart is not None:
        draw_results([found], chart)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.shape_engine")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--precision", choices=("bf16", "fp8", "int8"), default="fp8")
    parser.add_argument("--kernels", choices=("fastest", "portable"), default=ShapeSetup.kernels)
    parser.add_argument("--lanes", type=int, default=ShapeSetup.lanes)
    for key in LISTS:
        parser.add_argument(f"--{key.replace('_', '-')}", help="one or more, with commas between")
    parser.add_argument("--seconds", type=float, help="of each closed loop")
    parser.add_argument("--sustained", type=float, help="seconds back to back of each token count")
    parser.add_argument("--no-classes", dest="classes", action="store_false", help="do not record kernels")
    parser.add_argument("--chart", type=Path, help="an SVG of this run's loops, or of those in --from")
    parser.add_argument("--from", dest="results", type=Path, nargs="+", help="what such runs wrote")
    return parser


if __name__ == "__main__":
    run_script(main)
