"""`bench engine --shape`: a model of a benchmarked shape through its own artifact, lanes and graphs, on CUDA.

Prints the physics, the card's ceilings, what loading took, then each token count and the closed loops; all of
it is in the returned map too. Weights are random: speed and memory are those of a real model. Also
`python -m tools.bench.shape_engine --shape qwen3-0.6b --precision fp8`, where only the engine is installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.artifact import Artifact
from engine.build.spec import Kernels, Precision
from engine.models.architecture import Architecture
from engine.packed import pack
from engine.runtime.graph_lanes import GraphLanePool
from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.ceilings import measure_ceilings
from tools.bench.cuda_engine import BOUNDS, PEAK_BF16, PEAK_FP8, measure_bucket, measure_loads, say
from tools.bench.shape_checkpoint import shape_checkpoint
from tools.bench.shapes import SHAPES, count_work
from tools.errors import UserError
from tools.model_cache import cache_root


@dataclass(frozen=True)
class ShapeSetup:
    """`tokens`: sizes that are timed one by one; `in_flight`: requests of each closed loop of `seconds`."""

    shape: str
    precision: Precision
    kernels: Kernels
    lanes: int
    tokens: Sequence[int] = (1024, 2048, 4096, 8192)
    in_flight: Sequence[int] = (1, 2, 4, 8, 16)
    seconds: float = 2.0


def bench_shape(
    setup: ShapeSetup, stage: Callable[[str], None], line: Callable[[str], None]
) -> dict[str, Any]:
    """Everything that is measured; `stage` hears each as it begins, `line` the lines of the report."""
    if setup.shape not in SHAPES:
        raise UserError(f"--shape = {setup.shape!r}: must be one of {', '.join(sorted(SHAPES))}")
    if not torch.cuda.is_available():
        raise UserError(
            "--shape: is measured on CUDA, and torch sees no CUDA device; boundgen doctor says more"
        )
    a = SHAPES[setup.shape]
    stage("writing a random checkpoint")
    model = shape_checkpoint(setup.shape, a, cache_root())
    wanted = Wanted(model, setup.shape, "cuda", None, BOUNDS, setup.precision, setup.kernels)
    artifact = Artifact.open(cached_artifact(wanted, say=stage), device="cuda")
    stage("capturing graphs")
    pool = artifact.open_lanes(setup.lanes)
    assert isinstance(pool, GraphLanePool)
    try:
        return measure(setup, a, artifact, pool, line)
    finally:
        pool.close()


def measure(
    setup: ShapeSetup, a: Architecture, artifact: Artifact, pool: GraphLanePool, line: Callable[[str], None]
) -> dict[str, Any]:
    plan = artifact.manifest.plan
    assert plan is not None
    paths = sorted({layer["path"] for layer in plan["layers"]})
    line(f"kernels: {' and '.join(paths)}; {'; '.join(plan['notes']) or 'nothing that was not served'}")
    result: dict[str, Any] = {
        "shape": setup.shape, "precision": setup.precision, "kernels": paths, "lanes": setup.lanes,
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "artifact": artifact.digest,
        "parity": artifact.manifest.parity.model_dump(), "load": dataclasses.asdict(pool.load_report),
    }  # fmt: skip
    work = count_work(a, [150] * 27)
    floor = work.flops / (PEAK_FP8 if setup.precision == "fp8" else PEAK_BF16) * 1e3
    line(f"physics: {work.flops / 1e12:.2f} TFLOP for 27 samples of 150 tokens, floor {floor:.2f} ms")
    result["ceilings"] = measure_ceilings()
    line(f"ceilings: {result['ceilings']}")
    line(f"load: {result['load']}")
    result["check"] = check(pool, a)
    line(f"check: {result['check']}")
    result["buckets"] = [measure_bucket(pool, a, t, setup.precision == "fp8") for t in setup.tokens]
    assert artifact.head_weight is not None
    result["loads"] = measure_loads(pool, a, artifact.head_weight, setup.in_flight, setup.seconds)
    result["cost"] = pool.measure_cost().points
    result["fallbacks"] = pool.fallbacks
    return result


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


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.shape_engine")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--precision", choices=("bf16", "fp8"), default="fp8")
    parser.add_argument("--kernels", choices=("fastest", "portable"), default="fastest")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(ShapeSetup.tokens))
    parser.add_argument("--in-flight", type=int, nargs="*", default=list(ShapeSetup.in_flight))
    parser.add_argument("--seconds", type=float, default=ShapeSetup.seconds, help="of each closed loop")
    say(json.dumps(bench_shape(ShapeSetup(**vars(parser.parse_args(arguments))), say, say)))


if __name__ == "__main__":
    main(sys.argv[1:])
