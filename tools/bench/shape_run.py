"""The report of `bench engine --shape` on an opened artifact: everything that is measured, in its order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from engine.artifact import Artifact
from engine.models.architecture import Architecture
from engine.packed import pack
from engine.runtime.graph_lanes import GraphLanePool
from tools.bench.bucket_timing import MOST_OF_TWO, BucketTimer, bucket_line, shares_line
from tools.bench.card import Card
from tools.bench.mix_loops import best_line, best_under, run_mixes
from tools.bench.mixes import draw_mixes
from tools.bench.provenance import command_line, provenance
from tools.bench.shape_report import ceiling_line, launch_line, load_line, physics, physics_lines
from tools.bench.shape_setup import ShapeSetup
from tools.bench.shapes import narrow_matrices

Say = Callable[[str], None]


def measure(
    setup: ShapeSetup, artifact: Artifact, pool: GraphLanePool, card: Card, stage: Say, line: Say
) -> dict[str, Any]:
    """The whole report. What a recorder of kernels leaves behind slows launches down, so that comes last."""
    a = Architecture.from_manifest(artifact.manifest.architecture)
    narrow = narrow_matrices(artifact.manifest.plan)
    timer = BucketTimer(pool, card, a, narrow, setup.sustained)
    result = describe(setup, artifact, pool, card)
    line(f"kernels: {' and '.join(result['kernels'])}; {'; '.join(result['notes']) or 'all as asked for'}")
    result["physics"] = physics(a, narrow, card.peaks)
    for told in physics_lines(result["physics"]):
        line(told)
    stage("measuring the card's ceilings")
    result["ceilings"] = dict(card.ceilings())
    line(ceiling_line(result["ceilings"]))
    result["load"] = dataclasses.asdict(pool.load_report)
    line(load_line(result["load"]))
    result["check"] = check(pool, a)
    line(f"check: {result['check']}")
    unprepared = pool.fallbacks  # the check's
    stage("timing token counts")
    result["buckets"] = time_buckets(setup, timer, pool.num_lanes, line)
    stage("closed loops of requests")
    drawn = draw_mixes(a.vocab_size)
    mixes = [drawn[name] for name in setup.mixes]
    result["loops"] = run_mixes(artifact, pool, mixes, setup.in_flight, setup.seconds, line)
    result["best"] = best_under(result["loops"])
    for mix, best in result["best"].items():
        line(best_line(mix, best))
    result["cost"] = pool.cost.points
    result["fallbacks"] = pool.fallbacks - unprepared
    line(f"fallbacks to launches without a graph: {result['fallbacks']}")
    result["launch"] = dataclasses.asdict(pool.launch_report)
    line(launch_line(result["launch"]))
    result["kernel_shares"] = record_kernels(setup, timer, stage, line)
    return result


def describe(setup: ShapeSetup, artifact: Artifact, pool: GraphLanePool, card: Card) -> dict[str, Any]:
    """What was measured, on what, from what."""
    plan = artifact.manifest.plan or {"layers": [], "notes": ["the eager operations"]}
    return {
        "benchmark": "shape", "shape": setup.shape, "precision": setup.precision,
        "kernels": sorted({layer["path"] for layer in plan["layers"]}), "notes": plan["notes"],
        "lanes": pool.num_lanes, "takes_prefixes": pool.takes_prefixes, "gpu": card.name,
        "command": command_line(), "artifact": artifact.digest,
        "parity": artifact.manifest.parity.model_dump(), **provenance(str(artifact.device)),
    }  # fmt: skip


def record_kernels(setup: ShapeSetup, timer: BucketTimer, stage: Say, line: Say) -> list[dict[str, Any]]:
    if not setup.classes:
        return []
    stage("recording kernels")
    rows = []
    for kind in setup.lengths:
        for tokens in setup.tokens:
            rows.append(timer.kernel_shares(tokens, kind))
            line(shares_line(rows[-1]))
    return rows


def time_buckets(setup: ShapeSetup, timer: BucketTimer, lanes: int, line: Say) -> list[dict[str, Any]]:
    """One lane at a time, then two at once where that may pay."""
    rows = []
    for kind in setup.lengths:
        for tokens in setup.tokens:
            rows.append(timer.time(tokens, kind))
            line(bucket_line(rows[-1]))
            if lanes > 1 and tokens <= MOST_OF_TWO:
                rows.append(timer.time_two(tokens, kind))
                line(bucket_line(rows[-1]))
    return rows


def check(pool: GraphLanePool, a: Architecture) -> dict[str, Any]:
    """A batch twice, its bits equal; its samples alone, their relative error."""
    samples = [torch.randint(0, a.vocab_size, (n,)).tolist() for n in (1, 77, 128, 500, 16, 33, 2)]

    def forward(batch: list[list[int]]) -> torch.Tensor:
        return pool.executor.submit(pool.forward, pack(batch)).result()

    first, again = forward(samples), forward(samples)
    single = torch.cat([forward([sample]) for sample in samples])
    return {
        "repeat_equal": torch.equal(first, again),
        "packed_vs_single": float((first - single).norm() / single.norm()),
        "finite": bool(torch.isfinite(first).all()),
    }
