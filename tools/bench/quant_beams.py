"""`python -m tools.bench.quant_beams [--prompts N] [--width W] [--steps D]`: precision and ranks of beams.

Emulated on the CPU (engine.quant), against a float32 search by the same code: the demo's searches through the
recall pipeline's template, the whole vocabulary, sequences of D + 1 tokens. One request in five calibrates,
prompts are of those that judge. No token is left out of calibration or of 8 bits, since a search computes all
of them. A line a plan as it is measured, then one JSON line. About 3 CPU seconds a prompt and plan at the
full size (--prompts 50 --width 100 --steps 4), twice that for int8.

    SCHEME           every matrix, the head in full precision
    SCHEME/served    gate_up, down and the head alone, as a build for CUDA serves it
    SCHEME/rough     the same, by the 8-bit head's logits alone
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import torch

from engine.beam.head_weight import POOL, HeadWeight, narrow_head
from engine.build.accuracy import load_texts, model_of
from engine.build.cuda_beam_package import SERVING
from engine.build.spec import Calibration
from engine.models.checkpoint import Checkpoint, load_checkpoint
from engine.packed import BatchBounds
from engine.pipeline_config import read_pipeline
from engine.quant.beams import find_winners
from engine.quant.laboratory import Laboratory
from engine.quant.ranks import Ranks, Winners, compare_ranks
from engine.quant.requests import TextSets
from engine.quant.schemes import SCHEMES, Scheme, whole_form
from engine.quant.texts import Text
from tools.bench.provenance import provenance
from tools.bench.quant_accuracy import tell
from tools.model_cache import smollm2_gguf

DEFAULT = "bf16 e4m3_static e4m3_static/served int8"
BOUNDS = BatchBounds(samples=64, tokens=4096, tokens_per_sample=512)


def searches(checkpoint: Checkpoint) -> TextSets:
    """The demo's searches as prompts of the recall pipeline."""
    lines = files("tools.demo").joinpath("calibration.jsonl").read_text("utf-8").splitlines()
    requests = [request for request in map(json.loads, lines) if request["pipeline"] == "intent"]
    config = read_pipeline(Path(str(files("configs").joinpath("recall.yaml"))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "searches.jsonl")
        path.write_text("\n".join(json.dumps({"samples": each["samples"]}) for each in requests), "utf-8")
        return load_texts(Calibration(path, (config,)), checkpoint, BOUNDS)


def measure(
    laboratory: Laboratory, texts: Sequence[Text], reference: Sequence[Winners], plan: str, steps: int
) -> Ranks:
    """One plan as the module's docstring names them."""
    name, _, part = plan.partition("/")
    scheme: Scheme | None = next((each for each in SCHEMES if each == name), None)
    if scheme is None:
        raise SystemExit(f"--plans: {name!r} is no scheme of {', '.join(SCHEMES)}")
    matrices, head = laboratory.matrices(scheme), HeadWeight(laboratory.model.head)
    if part:
        kept = {place: each for place, each in matrices.items() if place[1] in SERVING.kinds}
        matrices = laboratory.matrices("bf16", whole_form(scheme)) | kept
        narrow, scale = narrow_head(head.weight) or (None, None)
        head = HeadWeight(head.weight.bfloat16(), narrow, scale, POOL if part == "served" else None)
    decoder = laboratory.decoder(whole_form(scheme), torch.bfloat16)
    width = len(reference[0].tokens)
    found = [find_winners(decoder, head, text, matrices, width=width, steps=steps) for text in texts]
    return compare_ranks(reference, found)


def search_exactly(laboratory: Laboratory, texts: Sequence[Text], width: int, steps: int) -> list[Winners]:
    """float32's winners."""
    decoder, head = laboratory.decoder("plain"), HeadWeight(laboratory.model.head)
    return [find_winners(decoder, head, text, {}, width=width, steps=steps) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", default=DEFAULT)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    checkpoint = load_checkpoint(smollm2_gguf(), max_tokens=BOUNDS.tokens_per_sample)
    texts = searches(checkpoint)
    prompts = texts.judge[: options.prompts]
    laboratory = Laboratory(model_of(checkpoint), texts.calibrate, tell)
    reference = search_exactly(laboratory, prompts, options.width, options.steps)
    tell("plan | winners shared | best 10 | best one | pairs in order | score shift | seconds")
    found = {}
    for plan in options.plans.split():
        started = time.perf_counter()
        ranks = measure(laboratory, prompts, reference, plan, options.steps)
        found[plan] = asdict(ranks)
        numbers = f"{ranks.winners:.3f} | {ranks.top:.3f} | {ranks.best:.2f} | {ranks.order:.3f}"
        tell(f"{plan} | {numbers} | {ranks.score_shift:.4f} | {time.perf_counter() - started:.0f}")
    tell(json.dumps({"plans": found, **provenance("cpu")}))


if __name__ == "__main__":
    main()
