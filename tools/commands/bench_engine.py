"""`boundgen bench engine`: samples a second of the engine, beside transformers, same machine and model."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from engine.artifact import Artifact
from engine.packed import BatchBounds
from engine.pipeline import ArtifactStore, Pipeline, PipelineConfig
from tools.artifact_cache import Wanted, cached_artifact
from tools.bench.engine_report import Work, physics_lines, results, side_line
from tools.bench.engine_run import TOLERANCE, engine_run, faster, largest_difference, take_turns
from tools.bench.peer import TransformersPeer
from tools.bench.physics import Shape, gemm_ceiling
from tools.bench.provenance import provenance
from tools.bench.workload import MAX_TOKENS, Request, make_requests, num_tokens
from tools.errors import UserError
from tools.model_cache import smollm2_gguf
from tools.steps import Steps

app = typer.Typer(rich_markup_mode="rich")

LABELS = {"yes": " yes", "no": " no"}
GEMM_SIZE = {"cpu": 2048, "cuda": 8192}


class Device(StrEnum):
    """Where both sides run."""

    CPU = "cpu"
    CUDA = "cuda"


class Peer(StrEnum):
    """What the engine is compared with."""

    TRANSFORMERS = "transformers"


@app.command(epilog="Example: [bold]boundgen bench engine --device cpu --peer transformers --json[/]")
def engine(
    device: Annotated[Device, typer.Option(help="Where both sides run.")] = Device.CPU,
    peer: Annotated[Peer, typer.Option(help="What to compare with.")] = Peer.TRANSFORMERS,
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file or Hugging Face directory; SmolLM2-135M without it.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests a round.")] = 4,
    samples: Annotated[int, typer.Option(min=1, help="Samples a request.")] = 15,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side, taken in turns.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each side; all CPUs.")] = None,
    seed: Annotated[int, typer.Option(help="Of the lengths and token ids.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Compare the engine's samples/s with transformers: same model, threads, samples, in one run.

    The peer computes one padded batch a request and only the last position's logits, in whichever of two ways
    is faster. A compiled artifact is built at the first run (a minute or two) and kept.
    """
    if device is Device.CUDA and not torch.cuda.is_available():
        raise UserError("--device = 'cuda': torch sees no CUDA device; boundgen doctor says more")
    threads = threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    dtype = torch.float32 if device is Device.CPU else torch.bfloat16
    console = Console(highlight=False, soft_wrap=True)
    with Steps() as say:
        source = model or smollm2_gguf(say=say)
        wanted = Wanted(source, "bench", device.value, None, bounds(samples))
        store = ArtifactStore(
            {"bench": cached_artifact(wanted, say=say)}, device=device.value, threads=threads
        )
        say("loading both sides")
        other = TransformersPeer(source, device.value, dtype, label_ids(store.get("bench").artifact))
        work_requests = make_requests(requests, samples, other.config.vocab_size, seed)
        with Pipeline.open(pipeline_config(samples), store) as pipeline:
            ours = engine_run(pipeline, tuple(LABELS))
            say("measuring the ceiling")
            work = describe(work_requests, Shape.of(other.config), device.value, dtype)
            gemm = f"one {GEMM_SIZE[device.value]} cubed {name_of(dtype)} matrix product, {threads} threads"
            for line in physics_lines(work, gemm):
                console.print(line)
            say("warming up, choosing the peer's faster way, comparing results")
            way, theirs = faster(other.ways(), work_requests)
            difference = largest_difference(ours, theirs, work_requests)
            if difference > TOLERANCE[dtype]:
                raise UserError(f"results differ by {difference:.2e}, allowed are {TOLERANCE[dtype]:g}")
            say(f"measuring, {rounds} rounds of each in turns")
            sides = take_turns({"boundgen": ours, f"transformers ({way})": theirs}, work_requests, rounds)
        store.close()
    for side in sides:
        console.print(side_line(side, work))
    console.print(f"results agree within {difference:.1e} (log-probabilities of the labels)")
    found = results(sides, work, difference)
    console.print(f"ratio: {found['ratio']}")
    if as_json:
        told = {
            "benchmark": "engine",
            "device": device,
            "dtype": name_of(dtype),
            "threads": threads,
            "peer": way,
        }
        typer.echo(json.dumps({**told, **found, **provenance(device.value)}))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bounds(samples: int) -> BatchBounds:
    """Room for one request, however long its samples."""
    return BatchBounds(samples=samples, tokens=samples * MAX_TOKENS, tokens_per_sample=MAX_TOKENS)


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


def describe(requests: list[Request], shape: Shape, device: str, dtype: torch.dtype) -> Work:
    """The round's physics."""
    padded = sum(len(each) * max(len(sample.token_ids) for sample in each) for each in requests)
    return Work(
        requests=len(requests),
        samples=sum(map(len, requests)),
        tokens=num_tokens(requests),
        padded_tokens=padded,
        useful_flops=shape.useful_flops(requests, len(LABELS)),
        ceiling_flops_s=gemm_ceiling(device, dtype, GEMM_SIZE[device]),
    )
