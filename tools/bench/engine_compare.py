"""`bench engine` from a checkpoint and its artifact to the numbers: loads both sides, checks, measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.artifact import Artifact
from engine.pipeline import ArtifactStore, Pipeline, PipelineConfig
from tools.bench.engine_report import Work, physics_lines, results, side_line
from tools.bench.engine_run import TOLERANCE, engine_run, faster, largest_difference, take_turns
from tools.bench.peer import TransformersPeer
from tools.bench.physics import Shape, gemm_ceiling
from tools.bench.provenance import provenance
from tools.bench.workload import MAX_TOKENS, Request, make_requests, num_tokens
from tools.errors import UserError

LABELS = {"yes": " yes", "no": " no"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """What is compared; gemm_size is the side of the square matrix product that gives the ceiling."""

    source: Path
    artifact: Path
    device: str
    requests: int
    samples: int
    rounds: int
    threads: int
    seed: int
    gemm_size: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.startswith("cuda") else torch.float32


def compare(setup: Setup, say: Say, tell: Say) -> dict[str, object]:
    """Run it all and return the JSON line's values. `say` hears the steps, `tell` the lines of the report.

    UserError where the results differ by more than the tolerance: then no time counts.
    """
    torch.set_num_threads(setup.threads)
    say("loading both sides")
    store = ArtifactStore({"bench": setup.artifact}, device=setup.device, threads=setup.threads)
    try:
        labels = label_ids(store.get("bench").artifact)
        peer = TransformersPeer(setup.source, setup.device, setup.dtype, labels)
        with Pipeline.open(pipeline_config(setup.samples), store) as pipeline:
            return _measure(setup, pipeline, peer, say, tell)
    finally:
        store.close()


def _measure(
    setup: Setup, pipeline: Pipeline, peer: TransformersPeer, say: Say, tell: Say
) -> dict[str, object]:
    requests = make_requests(setup.requests, setup.samples, peer.config.vocab_size, setup.seed)
    dtype = str(setup.dtype).removeprefix("torch.")
    say("measuring the ceiling")
    work = describe(requests, Shape.of(peer.config), setup)
    gemm = f"one {setup.gemm_size} x {setup.gemm_size} {dtype} matrix product, {setup.threads} threads"
    for line in physics_lines(work, gemm):
        tell(line)
    say("warming up, choosing the peer's faster way, comparing results")
    ours = engine_run(pipeline, tuple(LABELS))
    way, theirs = faster(peer.ways(), requests)
    difference = largest_difference(ours, theirs, requests)
    if difference > TOLERANCE[setup.dtype]:
        raise UserError(f"results differ by {difference:.2e}, allowed are {TOLERANCE[setup.dtype]:g}")
    say(f"measuring, {setup.rounds} rounds of each in turns")
    sides = take_turns({"boundgen": ours, f"transformers ({way})": theirs}, requests, setup.rounds)
    for side in sides:
        tell(side_line(side, work))
    tell(f"results agree within {difference:.1e} (log-probabilities of the labels)")
    told = {
        "benchmark": "engine",
        "device": setup.device,
        "dtype": dtype,
        "threads": setup.threads,
        "peer": way,
    }
    return {**told, **results(sides, work, difference), **provenance(setup.device)}


def pipeline_config(samples: int) -> PipelineConfig:
    """Token ids in, log-probabilities of the labels out."""
    return PipelineConfig.model_validate(
        {
            "name": "bench",
            "bounds": {
                "samples": samples,
                "tokens_per_sample": MAX_TOKENS,
                "tokens_per_request": samples * MAX_TOKENS,
            },
            "nodes": {
                "prompt": {"kind": "tokenizer", "artifact": "bench"},
                "model": {
                    "kind": "prefill",
                    "artifact": "bench",
                    "inputs": ["prompt"],
                    "head": "label_scores",
                    "labels": LABELS,
                },
                "answer": {"kind": "encoder", "inputs": ["model"], "output": "logprobs"},
            },
        }
    )


def label_ids(artifact: Artifact) -> tuple[int, ...]:
    """The token of each label, as the engine finds it."""
    return tuple(artifact.tokenizer.encode(text, add_special_tokens=False)[0] for text in LABELS.values())


def describe(requests: list[Request], shape: Shape, setup: Setup) -> Work:
    """The round's physics."""
    padded = sum(len(each) * max(len(sample.token_ids) for sample in each) for each in requests)
    return Work(
        requests=len(requests),
        samples=sum(map(len, requests)),
        tokens=num_tokens(requests),
        padded_tokens=padded,
        useful_flops=shape.useful_flops(requests, len(LABELS)),
        ceiling_flops_s=gemm_ceiling(setup.device, setup.dtype, setup.gemm_size),
    )
