"""`bench engine --prefixes`: what a batch costs when its samples' common beginnings are computed once.

One request of samples of 150 tokens: every token with each sample; the first 64, which all share, once; the
first 40 taken from a constant prefix; and both at once. The same lane, threads and weights, rounds in turns;
results are compared before any time counts. FLOPs are those of the tokens that are computed; what prefixes
save is told apart.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.artifact import Artifact
from engine.models.architecture import Architecture
from engine.packed import PackedBatch
from engine.prefixes import ConstantPrefix, Ids, Prefixes, Rules
from engine.runtime.lanes import LanePool
from tools.bench.engine_run import TOLERANCE
from tools.bench.physics import Shape
from tools.bench.provenance import provenance
from tools.errors import UserError

LENGTH, SHARED, CONSTANT = 150, 64, 40  # tokens of a sample, of them shared, of these constant
Say = Callable[[str], None]


@dataclass(frozen=True)
class PrefixSetup:
    """What is measured; threads are the lane's."""

    artifact: Path
    device: str
    samples: int
    rounds: int
    threads: int
    seed: int


@dataclass(frozen=True)
class Way:
    """One way to pack the request, and the seconds of each round: by the clock, and of the lane's thread."""

    name: str
    packed: PackedBatch
    wall: list[float]
    processor: list[float]


def bench_prefixes(setup: PrefixSetup, say: Say, tell: Say) -> dict[str, object]:
    """Run it all and return the JSON line's values; UserError where a way gives other results."""
    say("loading the artifact")
    artifact = Artifact.open(setup.artifact, device=setup.device)
    pool = artifact.open_lanes(1, setup.threads)
    try:
        if not pool.takes_prefixes:
            raise UserError(f"{setup.artifact}: this artifact's package takes no prefixes")
        ways = make_ways(artifact, setup)
        say("warming up, comparing results")
        difference = compare(pool, ways, TOLERANCE[getattr(torch, artifact.manifest.dtype)])
        say(f"measuring, {setup.rounds} rounds of each in turns")
        for _ in range(setup.rounds):
            for way in ways:
                time_way(pool, way)
    finally:
        pool.close()
    shape = shape_of(Architecture.from_manifest(artifact.manifest.architecture))
    rows = [describe(way, ways[0], shape, one_thread=setup.threads == 1) for way in ways]
    for row in rows:
        tell("  ".join(f"{key} {value}" for key, value in row.items()))
    return {
        "benchmark": "prefixes", "device": setup.device, "dtype": artifact.manifest.dtype,
        "threads": setup.threads, "samples": setup.samples, "tokens_per_sample": LENGTH,
        "rounds": setup.rounds,
        "ways": rows, "max_abs_hidden_difference": float(f"{difference:.2e}"), **provenance(setup.device),
    }  # fmt: skip


def make_ways(artifact: Artifact, setup: PrefixSetup) -> list[Way]:
    """The same request packed in each way, the plain one first."""
    random = np.random.default_rng(setup.seed)
    vocabulary = int(artifact.manifest.architecture["vocab_size"])

    def draw(count: int) -> Ids:
        return tuple(random.integers(0, vocabulary, count).tolist())

    beginning = draw(SHARED)
    request = [[(*beginning, *draw(LENGTH - SHARED)) for _ in range(setup.samples)]]
    constant = artifact.constant_prefix(beginning[:CONSTANT])
    never = Rules(min_shared=LENGTH)
    ways: list[tuple[str, ConstantPrefix | None, Rules | None]] = [
        ("plain", None, None),
        ("request", None, Rules()),
        ("constant", constant, never),
        ("both", constant, Rules()),
    ]
    return [Way(name, Prefixes(given, rules).pack(request)[0], [], []) for name, given, rules in ways]


def compare(pool: LanePool, ways: list[Way], tolerance: float) -> float:
    """The largest difference of a hidden state from the plain way's, relative to its rms."""
    plain, *others = (pool.executor.submit(pool.forward, way.packed).result() for way in ways)
    rms = plain.square().mean(-1, keepdim=True).sqrt()
    difference = max(float(((other - plain) / rms).abs().max()) for other in others)
    if not difference <= tolerance:
        raise UserError(f"results differ by {difference:.2e}, allowed are {tolerance:g}")
    return difference


def time_way(pool: LanePool, way: Way) -> None:
    def run() -> None:
        wall, processor = time.perf_counter(), time.thread_time()
        pool.forward(way.packed)
        way.wall.append(time.perf_counter() - wall)
        way.processor.append(time.thread_time() - processor)

    pool.executor.submit(run).result()


def describe(way: Way, plain: Way, shape: Shape, *, one_thread: bool) -> dict[str, object]:
    """Medians and ratios. A lane with one thread computes all on it: its own time leaves out what other work
    on the machine took."""
    seconds = statistics.median(way.wall)
    row: dict[str, object] = {
        "way": way.name, "ms": round(seconds * 1e3, 1),
        "ratio": round(statistics.median(plain.wall) / seconds, 3),
    }  # fmt: skip
    if one_thread:
        own = statistics.median(way.processor)
        row |= {"processor_ms": round(own * 1e3, 1)}
        row |= {"processor_ratio": round(statistics.median(plain.processor) / own, 3)}
    flops = computed_flops(shape, way.packed)
    return row | {
        "computed_tokens": way.packed.num_tokens,
        "saved_share": round(1 - way.packed.num_tokens / plain.packed.num_tokens, 3),
        "computed_gflop": round(flops / 1e9, 1),
        "computed_gflop_s": round(flops / 1e9 / seconds, 1),
    }


def computed_flops(shape: Shape, packed: PackedBatch) -> float:
    """Of the batch's own tokens; one at position p attends to p + 1, wherever those were computed."""
    pairs = float((packed.positions[: packed.num_tokens] + 1).sum())
    return shape.flops_a_token * packed.num_tokens + 4 * shape.layers * shape.heads * shape.head_dim * pairs


def shape_of(a: Architecture) -> Shape:
    return Shape(a.num_layers, a.hidden_size, a.num_heads, a.num_kv_heads, a.head_dim, a.intermediate_size)
