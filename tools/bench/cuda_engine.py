"""python -m tools.bench.cuda_engine --shape qwen3-0.6b --precision fp8: the CUDA engine against its physics.

Prints the arithmetic and its floor, the card's own ceilings, then for each token count milliseconds and
useful TFLOP/s in a burst and sustained, then closed-loop requests of 15 samples. Random weights; the last
line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.build.compiler import require_compiler
from engine.build.native import build_native, default_cache
from engine.models.architecture import Architecture
from engine.models.cuda_decoder import CudaDecoder
from engine.models.decoder import PackedDecoder
from engine.models.plan import Plan
from engine.packed import BatchBounds, PackedBatch, pack
from engine.prefixes import Prefixes, Rules
from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.native import Runner, load_native
from tools.bench.ceilings import measure_ceilings, time_device
from tools.bench.closed_loop import run_closed_loop
from tools.bench.random_model import compile_once, make_decoder, random_weights
from tools.bench.shapes import MIXES, SHAPES, count_work, draw_requests, fill_lengths

BOUNDS = BatchBounds(256, 8192, 512)
PEAK_BF16, PEAK_FP8 = 989e12, 1979e12  # dense, H100 and H200


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.cuda_engine")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--precision", choices=("bf16", "fp8"), default="fp8")
    parser.add_argument("--scaling", choices=("static", "token"), default="static")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--in-flight", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each closed loop")
    parser.add_argument("--packages", type=Path, default=Path(), help="folder that keeps compiled packages")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--layers", type=int, help="fewer than the shape's: a quick look")
    parser.add_argument(
        "--eager", action="store_true", help="capture the eager decoder: same kernels, no compiling"
    )
    parser.add_argument("--no-ceilings", action="store_true")
    parser.add_argument(
        "--lock", type=Path, help="file to lock while measuring, where several benches run at once"
    )
    return parser.parse_args(arguments)


def measure_bucket(pool: GraphLanePool, a: Architecture, tokens: int, fp8: bool) -> dict[str, Any]:
    """One token count, lengths of the benchmark's mix, one lane."""
    lengths = fill_lengths(tokens, *MIXES["mean150"], torch.Generator().manual_seed(tokens))
    packed = pack([torch.randint(0, a.vocab_size, (length,)).tolist() for length in lengths])
    replay = pool.executor.submit(pool.hold, packed).result()
    timing = time_device(replay)
    work = count_work(a, lengths)
    narrow = work.matrices if fp8 else 0.0
    weighted = (work.flops - narrow) / PEAK_BF16 + narrow / PEAK_FP8
    row = {
        "tokens": tokens, "samples": len(lengths),
        "burst_ms": timing.burst_ms, "sustained_ms": timing.sustained_ms,
        "tflops_burst": work.flops / timing.burst_ms / 1e9, "tflops": work.flops / timing.sustained_ms / 1e9,
        "mfu_bf16": work.flops / PEAK_BF16 / timing.sustained_ms * 1e3,
        "mfu_weighted": weighted / timing.sustained_ms * 1e3, "floor_ms": weighted * 1e3,
    }  # fmt: skip
    say("  " + "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    return row


def check(
    pool: GraphLanePool, decoder: torch.nn.Module, weights: dict[str, Tensor], a: Architecture
) -> dict[str, float]:
    """Relative errors: captured graphs against the eager CUDA decoder, and against float32 without
    quantisation."""
    lengths = [1, 77, 128, 500, 16, 33, 2]
    packed = pack([torch.randint(0, a.vocab_size, (length,)).tolist() for length in lengths])
    inputs = [x.cuda() for x in (packed.input_ids, packed.positions, packed.cu_seqlens)]
    got = pool.executor.submit(pool.forward, packed).result()
    again = pool.executor.submit(pool.forward, packed).result()
    wide = {name: x.float() for name, x in weights.items()}
    with torch.inference_mode():
        own = decoder(*inputs).float().cpu()
        exact = PackedDecoder.from_weights(a, wide, BOUNDS.tokens_per_sample)(*inputs).float().cpu()
    single = torch.cat(
        [pool.executor.submit(pool.forward, _alone(packed, i)).result() for i in range(len(lengths))]
    )
    return {  # relative errors
        "graph_vs_eager": _error(got, own), "vs_float32": _error(got, exact),
        "packed_vs_single": _error(got, single), "repeat_equal": float(torch.equal(got, again)),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    a = SHAPES[options.shape]
    if options.layers:
        a = dataclasses.replace(a, num_layers=options.layers)
    name = f"{options.shape}-{options.precision}-{options.scaling}"
    weights = random_weights(a, BOUNDS.tokens_per_sample)
    decoder, prepared, plan = make_decoder(a, weights, options.precision, options.scaling == "static", BOUNDS)
    result: dict[str, Any] = {"name": name, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    package = options.packages / f"{name}-{a.num_layers}.pt2"
    if not options.eager:
        started = time.monotonic()
        compile_once(decoder, BOUNDS, package)
        result["compile_s"] = time.monotonic() - started
        size_mb = package.stat().st_size / 1e6
        say(f"{name}: compiled in {result['compile_s']:.0f} s, {size_mb:.1f} MB; {plan.notes}")
        load_native(build_native(require_compiler(), default_cache()))
    if options.compile_only:
        return 0
    kind = functools.partial(EagerPool, decoder) if options.eager else GraphLanePool
    pool = kind(
        package, prepared, BOUNDS, vocab_size=a.vocab_size, device=torch.device("cuda"), lanes=options.lanes
    )
    try:
        with locked(options.lock):
            measure(pool, a, decoder, weights, plan, options, result)
    finally:
        pool.close()
    say(json.dumps(result))
    return 0


@contextlib.contextmanager
def locked(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(
    pool: GraphLanePool, a: Architecture, decoder: CudaDecoder, weights: dict[str, Tensor], plan: Plan,
    options: argparse.Namespace, result: dict[str, Any],
) -> None:  # fmt: skip
    """Everything that is timed, into `result`."""
    work = count_work(a, [150] * 27)
    floor = work.flops / (PEAK_FP8 if plan.quantises else PEAK_BF16) * 1e3
    say(f"physics: {work.flops / 1e12:.2f} TFLOP for 27 samples of 150 tokens, floor {floor:.2f} ms")
    if not options.no_ceilings:
        result["ceilings"] = measure_ceilings()
        say(f"ceilings: {result['ceilings']}")
    result["load"] = dataclasses.asdict(pool.load_report)
    say(f"load: {result['load']}")
    result["check"] = check(pool, decoder, weights, a)
    say(f"check: {result['check']}")
    result["buckets"] = [measure_bucket(pool, a, t, plan.quantises) for t in options.tokens]
    embedding = decoder.embed_tokens.weight
    result["loads"] = measure_loads(pool, a, embedding, options.in_flight, options.seconds)
    result["cost"] = pool.measure_cost().points
    say(f"cost: {[(t, round(ms, 3)) for t, ms in result['cost']]}")


class EagerPool(GraphLanePool):
    """Captures the eager decoder instead of its package: the same kernels on the device."""

    def __init__(self, decoder: CudaDecoder, *arguments: Any, **options: Any) -> None:
        self._decoder = decoder
        super().__init__(*arguments, **options)

    def open_runner(self) -> Runner:
        return _EagerRunner(self._decoder)


class _EagerRunner:
    def __init__(self, decoder: CudaDecoder) -> None:
        self._decoder = decoder

    def constant_names(self) -> list[str]:
        return []

    def use_constants(self, constants: Mapping[str, Tensor]) -> None:
        pass

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        return [self._decoder(*inputs)]


def measure_loads(
    pool: GraphLanePool, a: Architecture, embedding: Tensor, in_flight: Sequence[int], seconds: float
) -> list[Any]:
    """Closed-loop requests of each mix, two label rows for a head. What samples share is computed once where
    the pool's package can."""
    rows = embedding[:2].t().contiguous()

    def head(hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden @ rows,)

    pool.prepare(head)
    loads = []
    prefixes = Prefixes(None, Rules() if pool.takes_prefixes else None, pool.most_segments)
    for mix, requests in draw_requests(a.vocab_size).items():
        for count in in_flight:
            load = run_closed_loop(
                pool, head, requests, in_flight=count, seconds=seconds, bounds=BOUNDS, prefixes=prefixes
            )
            loads.append({"mix": mix} | dataclasses.asdict(load))
            say(f"  {loads[-1]} fallbacks {pool.fallbacks}")
    return loads


def _alone(packed: PackedBatch, index: int) -> PackedBatch:
    start, stop = packed.cu_seqlens[index : index + 2].tolist()
    return pack([packed.input_ids[start:stop].tolist()])


def _error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
