"""python -m tools.bench.kernels [--steps kernels chain lanes] [--model qwen3-0.6b] [--precision e4m3 int8]
[--library SO]

Times the Hopper kernels of one model's shape one by one, its whole prefill as one CUDA graph, and two lanes
at once. Useful FLOPs only (valid tokens, causal half of the attention); wall time, idle included. Burst: one
replay every 10 ms, median. Sustained: back to back for a second, where the card meets its power cap. Needs a
Hopper GPU. The last line is JSON.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from engine.ops.hopper.attention import attention
from engine.ops.hopper.compiler import build_library
from engine.ops.hopper.gate_up import gate_up
from engine.ops.hopper.library import load
from engine.ops.hopper.plan import plan
from engine.ops.hopper.qkv import qkv
from engine.ops.hopper.residual import residual
from engine.ops.hopper.rows import embed
from engine.ops.hopper.stack import attention_blocks
from engine.ops.hopper.supports import MATRICES
from tools.bench.card import Card, CudaCard, card_uuid, event_ms
from tools.bench.card_state import CardMonitor, CardState
from tools.bench.prefill_chain import Chain
from tools.bench.script import say
from tools.bench.synthetic import MODELS, mixed_lengths, useful_flops

ELEMENTS = {"e4m3": torch.float8_e4m3fn, "int8": torch.int8, "bf16": torch.bfloat16}
NAMES = {element: name for name, element in ELEMENTS.items()}
REPEATS = 20  # launches in a timing graph


def kernel_us(step: Callable[[], object]) -> float:
    """Median time of one launch among REPEATS in a graph."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            step()
    graph.replay()
    return statistics.median(event_ms(graph.replay) for _ in range(9)) * 1e3 / REPEATS


def bench_kernels(chain: Chain, tokens: int) -> dict[str, float]:
    """Microseconds of each kernel at `tokens`, sample length 128 (attention: also mixed lengths)."""
    shape, library, weights = chain.model.layer, chain.library, chain.layers[1]
    heads = (shape.num_q, shape.num_kv)
    blocks = attention_blocks(torch.device("cuda", 0))
    ids, positions, cu_seqlens = chain.batch([128] * (tokens // 128))
    x, x8, sums, row_scales = embed(library, ids, chain.table, chain.first_scales, chain.precision["qkv"])
    items, offsets = plan(library, cu_seqlens, positions, *heads, blocks)
    operand = x8 if x8.numel() else x
    eps = shape.eps if shape.head_norm else -1.0
    rope = (*chain.rope, positions)
    w = weights

    def run_qkv() -> Any:
        head = (w.qkv_scales, w.head_weight, w.bias)
        return qkv(library, operand, sums, w.qkv, *head, *rope, *heads, shape.eps, eps, 0, row_scales)

    fused = run_qkv()
    a = attention(library, fused, items, offsets, w.attention_scales, *heads, w.o.dtype)

    def run_gate_up() -> tuple[torch.Tensor, torch.Tensor]:
        scales, output = w.gate_up_scales, w.down.dtype
        made: tuple[torch.Tensor, torch.Tensor] = gate_up(
            library, operand, sums, w.gate_up, scales, shape.eps, output, 0, row_scales
        )
        return made

    h, of_columns = run_gate_up()
    of_h = of_columns if h.dtype == torch.int8 else None
    mixed = chain.batch(mixed_lengths(tokens))[2]
    mixed_items, mixed_offsets = plan(library, mixed, positions, *heads, blocks)
    steps: dict[str, Callable[[], object]] = {
        "qkv": run_qkv,
        "attention_128": lambda: attention(
            library, fused, items, offsets, w.attention_scales, *heads, w.o.dtype
        ),
        "attention_mixed": lambda: attention(
            library, fused, mixed_items, mixed_offsets, w.attention_scales, *heads, w.o.dtype
        ),
        "o": lambda: residual(library, a, w.o, w.o_scales, x, w.gate_up.dtype, 0, None, sums, shape.eps),
        "gate_up": run_gate_up,
        "down": lambda: residual(library, h, w.down, w.down_scales, x, w.qkv.dtype, 0, of_h, sums, shape.eps),
        "plan_mixed": lambda: plan(library, mixed, positions, *heads, blocks),
        "embed": lambda: embed(library, ids, chain.table, chain.first_scales, chain.precision["qkv"]),
    }
    matrices = shape.matrices()
    measured = {}
    for name, step in steps.items():
        measured[name] = kernel_us(step)
        rate = ""
        if name in matrices:
            flops = 2.0 * tokens * matrices[name][0] * matrices[name][1]
            rate = f"  {flops / measured[name] / 1e6:6.0f} TFLOP/s"
        say(f"T={tokens} {name:16} {measured[name]:8.1f} us{rate}")
    return measured


def bench_chain(
    card: Card, chain: Chain, tokens: int, kind: str, chained: bool, seconds: float
) -> dict[str, float | None]:
    """One graph of the whole model; chained: the GEMMs of a layer in one launch."""
    lengths = [128] * (tokens // 128) if kind == "128" else mixed_lengths(tokens)
    captured = chain.capture(chain.steps(chain.batch(lengths), chained=chained))
    flops = useful_flops(chain.model, lengths)
    timing = card.time(captured.graph.replay, seconds)
    burst, sustained = timing.burst_ms, timing.sustained_ms
    assert burst is not None
    tera = {"burst": flops / burst / 1e9, "sustained": flops / sustained / 1e9}
    name = NAMES[chain.precision["qkv"]]
    share = ""
    if card.peaks is not None:
        peak = card.peaks.bf16 if name == "bf16" else card.peaks.fp8  # int8's is that of fp8
        share = f", mfu_weighted {tera['sustained'] * 1e12 / peak:.3f}"
    say(
        f"T={tokens:5} {kind:5} {name} {'chained' if chained else 'apart  '}: burst {burst:7.3f} ms "
        f"{tera['burst']:5.0f}, sustained {sustained:7.3f} ms {tera['sustained']:5.0f} useful TFLOP/s"
        f"{share} [{told(timing.state)}]"
    )
    return {"burst_ms": burst, "sustained_ms": sustained, **tera, **asdict(timing.state)}


def told(state: CardState) -> str:
    known = ((state.sm_mhz, "MHz"), (state.watts, "W"))
    return ", ".join(f"{value:.0f} {unit}" for value, unit in known if value is not None)


def bench_lanes(card: Card, chain: Chain, tokens: int, seconds: float) -> dict[str, float]:
    """Two graphs at once, each with all and with half of the multiprocessors."""
    lengths, results = mixed_lengths(tokens), {}
    for chained, share in product((True, False), (0, 66)):
        steps = [chain.steps(chain.batch(lengths, seed), max_sms=share, chained=chained) for seed in (1, 2)]
        captured = [chain.capture(step) for step in steps]
        timing = card.time_together([each.graph.replay for each in captured], seconds)
        total, state = timing.sustained_ms, told(timing.state)
        tera = 2 * useful_flops(chain.model, lengths) / total / 1e9
        label = f"{'chained' if chained else 'apart'}, {share or 'all'} SMs each"
        say(f"two lanes of T={tokens}, {label}: {total:.3f} ms, {tera:.0f} useful TFLOP/s [{state}]")
        results[label] = tera
    return results


def check_chain(chain: Chain) -> float:
    """Relative error of the last layer's output against float32."""
    lengths = [77, 128, 500, 16, 33, 128, 1]
    ids, positions, cu_seqlens = chain.batch(lengths)
    y = chain.steps((ids, positions, cu_seqlens))().float()
    want = chain.plain(ids, lengths)
    error = float((y - want).norm() / want.norm())
    say(f"all {chain.model.num_layers} layers against float32: relative error {error:.2e}")
    return error


def measure(
    options: argparse.Namespace, chains: Mapping[str, Chain], card: Card
) -> dict[str, dict[str, object]]:
    """What each chain's precision gave, by step."""
    measured: dict[str, dict[str, object]] = {
        name: {"error": check_chain(chain)} for name, chain in chains.items()
    }
    for tokens, (name, chain) in product(options.tokens, chains.items()):
        found = measured[name]
        if "kernels" in options.steps:
            found[f"kernels_us_{tokens}"] = bench_kernels(chain, tokens)
        if "chain" in options.steps:
            for kind, chained in product(options.kinds, (True, False)):
                label = f"chain_{tokens}_{kind}_{'chained' if chained else 'apart'}"
                found[label] = bench_chain(card, chain, tokens, kind, chained, options.seconds)
        if "lanes" in options.steps and tokens <= 2048:
            found[f"lanes_{tokens}"] = bench_lanes(card, chain, tokens, options.seconds)
    return measured


def main() -> None:
    """Parse, run the steps, print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", nargs="+", default=["kernels", "chain", "lanes"], choices=["kernels", "chain", "lanes"]
    )
    parser.add_argument("--model", default="qwen3-0.6b", choices=sorted(MODELS))
    parser.add_argument(
        "--precision", nargs="+", default=["e4m3"], choices=sorted(ELEMENTS),
        help="several are measured in turn, on the same card in the same minutes",
    )  # fmt: skip
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument(
        "--kinds", nargs="+", default=["128", "mixed"], choices=["128", "mixed"], help="sample lengths"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a sustained measurement")
    parser.add_argument(
        "--library", type=Path, help="a compiled library; without it one is built under build/hopper"
    )
    options = parser.parse_args()
    path = options.library or build_library(Path("build/hopper"))[0]
    library, model = load(path), MODELS[options.model]
    chains = {
        name: Chain(model, dict.fromkeys(MATRICES, ELEMENTS[name]), library) for name in options.precision
    }
    with CardMonitor(card_uuid()) as monitor:
        measured = measure(options, chains, CudaCard(monitor))
    result: dict[str, object] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "library": path.stem,
        "model": options.model,
        **measured,
    }
    say(json.dumps(result))


if __name__ == "__main__":
    main()
