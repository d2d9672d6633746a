"""python -m tools.bench.attention_cases [--tokens 4096 ...] [--library SO]

Times the Hopper attention and its work list alone, one model's heads: equal and mixed lengths, whole prompts
of 150 tokens, and such prompts with what they share computed once. Every case also as a package calls it
that could take prefixes and gets none: the two must cost the same. Needs a Hopper GPU. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from engine.ops.hopper.attention import attention
from engine.ops.hopper.compiler import build_library
from engine.ops.hopper.library import load
from engine.ops.hopper.plan import plan
from engine.ops.hopper.stack import attention_blocks
from tools.bench.kernels import ELEMENTS, kernel_us
from tools.bench.mixes import CONSTANT, LENGTH, SAMPLES, SHARED
from tools.bench.script import say
from tools.bench.synthetic import MODELS, mixed_lengths

NONE = (-1, 0)


@dataclass(frozen=True)
class Case:
    """Lengths of segments; of each its parent and rows of the constant prefix, where any has some."""

    lengths: list[int]
    before: list[tuple[int, int]] | None = None

    @property
    def pairs(self) -> int:
        """Of a query and a key that it sees."""
        before = self.before or [NONE] * len(self.lengths)
        seen = [n + (self.lengths[parent] if parent >= 0 else 0) for parent, n in before]
        return sum(n * (n + 1) // 2 + n * s for n, s in zip(self.lengths, seen, strict=True))


def make_cases(tokens: int) -> dict[str, Case]:
    """Each of at most `tokens` computed tokens, as near as whole samples come; one request at least."""
    rest = LENGTH - SHARED
    requests = max(1, tokens // (SHARED + SAMPLES * rest))
    owners = [requests * SAMPLES + request for request in range(requests) for _ in range(SAMPLES)]
    count = tokens // (LENGTH - CONSTANT)
    return {
        "128": Case([128] * (tokens // 128)),
        "mixed": Case(mixed_lengths(tokens)),
        f"{LENGTH} whole": Case([LENGTH] * (tokens // LENGTH)),
        f"{SHARED} of {LENGTH} shared": Case(
            [rest] * len(owners) + [SHARED] * requests,
            [*((owner, 0) for owner in owners), *[NONE] * requests],
        ),
        f"{CONSTANT} of {LENGTH} constant": Case([LENGTH - CONSTANT] * count, [(-1, CONSTANT)] * count),
    }


def time_case(case: Case, heads: tuple[int, int, int], library: str, output: torch.dtype) -> dict[str, float]:
    """Microseconds of the attention and of the work list, without and with prefixes as an input."""
    num_q, num_kv, head_dim = heads
    tokens = sum(case.lengths)
    rows = torch.randn(tokens, (num_q + 2 * num_kv) * head_dim, device="cuda").bfloat16()
    cu_seqlens = torch.tensor([0, *case.lengths], device="cuda").cumsum(0).int()
    positions = torch.zeros(tokens, dtype=torch.int64, device="cuda")
    before = torch.tensor(case.before or [NONE] * len(case.lengths), dtype=torch.int32, device="cuda")
    constant = torch.randn(2, 256, num_kv, head_dim, device="cuda").bfloat16()
    scales = torch.full((num_q,), 30.0, device="cuda")
    blocks = attention_blocks(torch.device("cuda", 0))
    found: dict[str, float] = {}
    ways = {"given": (before, constant)} | ({} if case.before else {"plain": (None, None)})
    for way, (prefixes, rows_before) in ways.items():
        deal = partial(plan, library, cu_seqlens, positions, num_q, num_kv, blocks, prefixes)
        attend = partial(attention, library, rows, *deal(), scales, num_q, num_kv, output, rows_before)
        found[f"attention_{way}"], found[f"plan_{way}"] = kernel_us(attend), kernel_us(deal)
    tera = 4e-6 * num_q * head_dim * case.pairs / found["attention_given"]
    return {name: round(us, 2) for name, us in found.items()} | {"tokens": tokens, "tflops": round(tera, 1)}


def main() -> None:
    """Parse, time every case, print a line each and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen3-0.6b", choices=sorted(MODELS))
    parser.add_argument("--precision", default="e4m3", choices=sorted(ELEMENTS), help="of the output")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--library", type=Path, help="a compiled library; without it one is built")
    options = parser.parse_args()
    path = options.library or build_library(Path("build/hopper"))[0]
    shape, library = MODELS[options.model].layer, load(path)
    heads, output = (shape.num_q, shape.num_kv, shape.head_dim), ELEMENTS[options.precision]
    measured: dict[str, dict[str, float]] = {}
    for tokens in options.tokens:
        for name, case in make_cases(tokens).items():
            found = measured[f"{name}, T={tokens}"] = time_case(case, heads, library, output)
            say(f"T={tokens:5} {name:20} " + "  ".join(f"{key} {value}" for key, value in found.items()))
    say(json.dumps({"gpu": torch.cuda.get_device_name(), "library": path.stem, **measured}))


if __name__ == "__main__":
    main()
