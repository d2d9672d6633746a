"""`bench engine --pipeline beam`: searches of a model of a benchmarked shape, through its artifact and lanes.

Random weights, the whole vocabulary: the head is a good part of a search. Also
`python -m tools.bench.beam_engine --shape qwen2.5-0.5b --precision fp8`, where only the engine is installed;
the last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.build.spec import Precision
from engine.models.architecture import Architecture
from engine.packed import BatchBounds
from engine.runtime.beam_graphs import GraphBeamLanes
from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.beam_run import BeamLoads, Searched, measure
from tools.bench.beam_work import MIXES
from tools.bench.card import CudaCard, card_uuid
from tools.bench.card_state import CardMonitor
from tools.bench.provenance import command_line, provenance
from tools.bench.script import run_script, say
from tools.bench.shape_checkpoint import shape_checkpoint
from tools.bench.shape_setup import read_lists
from tools.bench.shapes import SHAPES, narrow_matrices
from tools.errors import UserError
from tools.model_cache import cache_root

Say = Callable[[str], None]
VOCABULARY = 151_936  # of both Qwen shapes
PRECISIONS = ("bf16", "fp8", "int8")
BEAM_SHAPE = "qwen2.5-0.5b"
LISTS = ("mixes", "requests", "in_flight")


@dataclass(frozen=True)
class BeamSetup:
    """UserError names the option and its value."""

    shape: str
    precision: Precision
    lanes: int = 1
    layers: int | None = None  # fewer than the shape's: a quick look
    loads: BeamLoads = field(default_factory=BeamLoads)

    def __post_init__(self) -> None:
        for key, values, known in (
            ("shape", [self.shape], sorted(SHAPES)),
            ("precision", [self.precision], PRECISIONS),
            ("mixes", self.loads.mixes, MIXES),
        ):
            for value in values:
                if value not in known:
                    raise UserError(f"--{key} = {value!r}: must be one of {', '.join(known)}")
        for key, numbers in (("requests", self.loads.requests), ("in-flight", self.loads.in_flight)):
            if not numbers or not all(number >= 1 for number in numbers):
                raise UserError(f"--{key} = {','.join(map(str, numbers))!r}: must be positive numbers")
        if max(self.loads.requests) > self.loads.prompts:
            raise UserError(f"--requests = {max(self.loads.requests)}: over --prompts = {self.loads.prompts}")

    @property
    def architecture(self) -> Architecture:
        a = SHAPES[self.shape]
        return dataclasses.replace(a, vocab_size=VOCABULARY, num_layers=self.layers or a.num_layers)

    @property
    def bounds(self) -> BatchBounds:
        longest = max(most for _, most in MIXES.values())
        return BatchBounds(self.loads.prompts, self.loads.prompts * longest, longest)


def bench_beams(setup: BeamSetup, stage: Say, line: Say) -> dict[str, Any]:
    """Everything that is measured; `stage` hears each as it begins, `line` the lines of the report."""
    if not torch.cuda.is_available():
        raise UserError(
            "--pipeline beam: is measured on CUDA, and torch sees no CUDA device; boundgen doctor says more"
        )
    stage("writing a random checkpoint")
    name = f"{setup.shape}-whole"
    model = shape_checkpoint(name, setup.architecture, cache_root(), "cuda")
    beam = BeamBounds(setup.loads.width, setup.loads.steps, setup.loads.prompts)
    stage("building its artifact, unless it is kept from before")
    wanted = Wanted(model, name, "cuda", None, setup.bounds, setup.precision, beam=beam)
    artifact = Artifact.open(cached_artifact(wanted, say=stage), device="cuda")
    stage("opening lanes")
    pool = artifact.open_lanes(setup.lanes)
    try:
        beams = artifact.open_beams(pool)
        assert isinstance(beams, GraphBeamLanes)
        plan = artifact.manifest.plan
        what = Searched(beams, setup.architecture, artifact.has_narrow_head, narrow_matrices(plan))
        with CardMonitor(card_uuid()) as monitor:
            card = CudaCard(monitor)
            found = measure(what, setup.loads, card, stage, line)
        assert artifact.manifest.beam is not None
        return {
            "benchmark": "beam", "shape": setup.shape, "precision": setup.precision, "lanes": setup.lanes,
            "layers": setup.architecture.num_layers, "gpu": card.name, "command": command_line(),
            "artifact": artifact.digest, "parity": artifact.manifest.beam.parity.model_dump(),
            "notes": None if plan is None else plan["notes"], **provenance("cuda"), **found,
        }  # fmt: skip
    finally:
        pool.close()


def main(arguments: list[str]) -> None:
    options = vars(_parser().parse_args(arguments))
    given = read_lists({key: options.pop(key) for key in LISTS})
    given |= {key: value for key, value in options.items() if value is not None}
    say(json.dumps(bench_beams(make_setup(given), say, say)))


def make_setup(options: dict[str, Any]) -> BeamSetup:
    """Of options by the names of BeamSetup's and BeamLoads' fields."""
    names = {each.name for each in dataclasses.fields(BeamLoads)}
    loads = BeamLoads(**{key: value for key, value in options.items() if key in names})
    return BeamSetup(**{key: value for key, value in options.items() if key not in names}, loads=loads)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.beam_engine")
    parser.add_argument("--shape", default=BEAM_SHAPE)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp8")
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--layers", type=int, help="fewer than the shape's: a quick look")
    parser.add_argument("--beam-width", dest="width", type=int)
    parser.add_argument("--beam-steps", dest="steps", type=int)
    parser.add_argument("--prompts", type=int, help="most requests of a batch")
    for key in LISTS:
        parser.add_argument(f"--{key.replace('_', '-')}", help="one or more, with commas between")
    parser.add_argument("--seconds", type=float, help="of each load")
    parser.add_argument("--sustained", type=float, help="seconds back to back of each graph")
    parser.add_argument("--no-poisson", dest="poisson", action="store_false", default=None)
    parser.add_argument("--no-classes", dest="classes", action="store_false", default=None)
    parser.add_argument("--items", type=int, help="legal sequences: what they cost")
    return parser


if __name__ == "__main__":
    run_script(main)
