"""`python -m tools.bench.quant_accuracy [--plans ...] [--texts N]`: what eight bits do to SmolLM2's answers.

Emulated on the CPU (engine.quant), the demo's calibration texts, judged by those that neither calibrated nor
chose. One line a plan as it is measured, then one JSON line. Plans:

    SCHEME             every matrix, tensors between them stored in bf16 as a device does
    SCHEME/noprefix    the same, the template's leading tokens in 8 bits too
    SCHEME/KIND        matrices of that kind alone, all else float32: a part of the error
    SCHEME/weights     rounded weights alone, all else float32
    SCHEME/float32     every matrix, tensors between them in float32
    auto/FAMILY        the choice within the default budget: auto/int8, auto/int8+e4m3, auto/e4m3_static
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from engine.build.accuracy import load_texts, model_of
from engine.models.checkpoint import load_checkpoint
from engine.packed import BatchBounds
from engine.quant.agreement import Agreement
from engine.quant.budget import Budget
from engine.quant.emulation import Place
from engine.quant.int8 import Int8Matrix, StaticHeads
from engine.quant.laboratory import Laboratory
from engine.quant.planning import INT8, STILL, Family, Planner
from engine.quant.requests import TextSets
from engine.quant.rows import Matrix, Rows
from engine.quant.schemes import KINDS, Scheme, whole_form
from engine.quant.speed import estimate_times
from tools.accuracy import DEMO, read_calibration
from tools.bench.provenance import provenance
from tools.model_cache import smollm2_gguf

DEFAULT = (
    "bf16 e4m3_static e4m3_token int8 int8_exact int8/noprefix auto/int8 auto/int8+e4m3 int8/float32 "
    "int8/weights int8/qkv int8/output int8/gate_up int8/down"
)
E4M3 = Family("e4m3_static", "plain", dict.fromkeys(KINDS, "e4m3_static"))
FAMILIES = (INT8, STILL, E4M3)
BOUNDS = BatchBounds(samples=64, tokens=4096, tokens_per_sample=512)


@dataclass(frozen=True)
class RoundedWeights:
    """An int8 matrix with inputs as they come."""

    matrix: Int8Matrix

    def __call__(self, rows: Rows) -> Tensor:
        rule, weight = self.matrix.rule, self.matrix.weight.float() * self.matrix.weight_scale[:, None]
        if isinstance(rule, StaticHeads):  # its folding takes the scales off the inputs
            weight = weight / rule.scales.repeat_interleave(weight.shape[1] // len(rule.scales))
            return rows.finish(rows.values @ weight.T)
        return rows.finish(rule.fold(rows.values) @ weight.T)


def tell(text: str) -> None:
    """At once: the next line may take minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def measure(laboratory: Laboratory, texts: TextSets, plan: str) -> Agreement:
    """One plan as the module's docstring names them."""
    first, _, part = plan.partition("/")
    if first == "auto":
        return choose(laboratory, texts, part)
    scheme = _scheme(first)
    form, matrices = whole_form(scheme), laboratory.matrices(scheme)
    if part in KINDS or part == "weights":
        some: dict[Place, Matrix] = {p: m for p, m in matrices.items() if part in (p[1], "weights")}
        if part == "weights":
            some = {p: RoundedWeights(m) for p, m in some.items() if isinstance(m, Int8Matrix)}
        return laboratory.measure(texts.judge, some, form=form, carrier=torch.float32)
    carrier = torch.float32 if part == "float32" else torch.bfloat16
    return laboratory.measure(texts.judge, matrices, form=form, carrier=carrier, prefix=part != "noprefix")


def choose(laboratory: Laboratory, texts: TextSets, name: str) -> Agreement:
    """What `auto` does for one family of plans, step by step."""
    family = next((each for each in FAMILIES if each.name == name), None)
    if family is None:
        raise SystemExit(f"--plans: {name!r} is no family of {', '.join(each.name for each in FAMILIES)}")
    architecture = laboratory.model.architecture
    times = estimate_times(architecture)
    planner = Planner(laboratory, family, texts.choose, times, lambda stage: tell(f"  {stage}"))
    for group in planner.groups:
        where = f"{group.kind} {group.first}-{group.last}"
        tell(f"  {where}: shift {group.label_shift or 0.0:.4f}, KL {group.next_token_kl:.6f}")
    choice = planner.choose(Budget())
    found = choice.agreement
    tell(f"  while choosing: shift {found.label_shift or 0.0:.4f}, KL {found.next_token_kl:.5f}")
    chosen, agreement = planner.verify(choice, Budget(), texts.judge)
    speed = times.plan_us(architecture.num_layers, {}) / chosen.us
    count = f"{len(chosen.plan)} of {len(chosen.matrices)} matrices"
    tell(f"  {count}, {speed:.3f} times bf16's speed ({times.source})")
    for kind in KINDS:
        tell(f"  {kind}: layers {[layer for layer, each in sorted(chosen.plan) if each == kind]}")
    return agreement


def _scheme(name: str) -> Scheme:
    scheme: Scheme | None = next((each for each in get_args(Scheme) if each == name), None)
    if scheme is None:
        raise SystemExit(f"--plans: {name!r} is no scheme of {', '.join(get_args(Scheme))}")
    return scheme


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", default=DEFAULT)
    parser.add_argument("--texts", type=int, help="judge by so many texts (all of them)")
    parser.add_argument("--model", type=Path, help="a checkpoint in place of SmolLM2")
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model or smollm2_gguf(), max_tokens=BOUNDS.tokens_per_sample)
    calibration = read_calibration(DEMO, [], Budget())
    assert calibration is not None
    texts = load_texts(calibration, checkpoint, BOUNDS)
    texts = TextSets(texts.calibrate, texts.choose, texts.judge[: options.texts])
    laboratory = Laboratory(model_of(checkpoint), texts.calibrate, tell)
    found = {}
    tell("plan | label shift (most) | next-token KL | same label | texts | seconds")
    for plan in options.plans.split():
        started = time.perf_counter()
        result = measure(laboratory, texts, plan)
        found[plan] = asdict(result)
        shift, same = result.label_shift or 0.0, result.label_agreement or 0.0
        numbers = (
            f"{shift:.4f} ({result.label_shift_max or 0.0:.2f}) | {result.next_token_kl:.5f} | {same:.4f}"
        )
        tell(f"{plan} | {numbers} | {result.texts} | {time.perf_counter() - started:.0f}")
    tell(json.dumps({"plans": found, **provenance("cpu")}))


if __name__ == "__main__":
    main()
