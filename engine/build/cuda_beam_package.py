"""The two packages of a search on CUDA, over the tensors of the forward's package; the head in 8 bits beside
the exact one, which scores its choice again.

On a CPU the same packages come out, with the operations' oracles in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from engine.beam.bounds import BeamBounds
from engine.build.compilation import compile_package, expected_warnings
from engine.manifest import PROMPT_PACKAGE, STEP_PACKAGE
from engine.models.architecture import Architecture
from engine.models.cuda_beam import CudaPromptDecoder, CudaStepDecoder
from engine.models.plan import Plan
from engine.packed import MIN_SAMPLES, BatchBounds
from engine.quant.serving import Serving
from engine.runtime.beam_buckets import whole_steps

SERVING = Serving(kinds=("gate_up", "down"), narrow_head=True)
NOTE = "beams: the attention's projections stay bf16, every layer goes the portable path"
LOSS = "beams: 8 bits may change which sequences win"
KEPT = {"int8": 87, "fp8": 75}  # percent of float32's winners, tools/bench/RESULTS.md
STAYS_NOTE = "beams: neither gate_up nor down can be in int8; every matrix stays bf16"


def plan_beams(plan: Plan, *, counted: bool = False) -> Plan:
    """`plan` as a search takes it: quantising attention's few columns costs more than its products gain.
    `counted`: the winners that it keeps are, so nobody has to be told to."""
    layers = tuple(replace(layer, qkv="bf16", output="bf16", path="portable") for layer in plan.layers)
    used = {precision for layer in layers for precision in (layer.gate_up, layer.down)} - {"bf16"}
    notes = [NOTE]
    if used and not counted:
        notes.append(_loss_note(min(KEPT[each] for each in used)))
    if plan.rotated and not used:
        notes.append(STAYS_NOTE)
    return replace(
        plan, layers=layers, notes=(*plan.notes, *notes), library=None, rotated=plan.rotated and bool(used)
    )


def _loss_note(kept: int) -> str:
    mend = "measure it with --calibrate FILE --pipeline FILE, build with --precision auto or bf16"
    return f"{LOSS} (SmolLM2-135M kept {kept}% of float32's, bf16 96%); {mend}"


def write_cuda_beam_packages(
    architecture: Architecture,
    prepared: Mapping[str, Tensor],
    plan: Plan,
    bounds: BatchBounds,
    beam: BeamBounds,
    folder: Path,
    progress: Callable[[str], None],
) -> None:
    """`prepared`: the CUDA decoder's tensors on the device, rotary tables of every position included."""
    positions = bounds.tokens_per_sample + beam.steps
    device = prepared["embed_tokens.weight"].device
    progress("compiling the prompts' pass")
    prompts = BatchBounds(max(beam.prompts, MIN_SAMPLES), bounds.tokens, bounds.tokens_per_sample)
    prompt = CudaPromptDecoder.from_weights(architecture, prepared, plan, prompts, positions)
    compile_package(_export_prompts(prompt, prompts, device), folder / PROMPT_PACKAGE, as_traced=True)
    progress("compiling the decode step")
    step = CudaStepDecoder.from_weights(architecture, prepared, plan, prompts, positions)
    compile_package(_export_step(step, prompts, beam, device), folder / STEP_PACKAGE, as_traced=True)


def most_tokens(bounds: BatchBounds) -> int:
    """Of the prompts' pass; every prompt that is missing takes one, and buckets are whole steps."""
    return whole_steps(bounds.tokens + bounds.samples + 1)


def _export_prompts(decoder: CudaPromptDecoder, bounds: BatchBounds, device: torch.device) -> ExportedProgram:
    """Dynamic in tokens and prompts."""
    num_tokens, prompts = most_tokens(bounds), bounds.samples + 1
    tokens = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    borders = torch.full((prompts + 1,), num_tokens, dtype=torch.int32, device=device)
    borders[:-1] = torch.arange(prompts, dtype=torch.int32, device=device)
    cache = _cache(decoder.architecture, 1, num_tokens, device)
    token_dim = Dim("tokens", min=MIN_SAMPLES, max=num_tokens)
    border_dim = Dim("borders", min=MIN_SAMPLES + 1, max=prompts + 1)
    with torch.no_grad(), expected_warnings():
        return torch.export.export(
            decoder,
            (tokens, tokens.clone(), borders, cache, cache.clone()),
            dynamic_shapes=({0: token_dim}, {0: token_dim}, {0: border_dim}, {2: token_dim}, {2: token_dim}),
        )


def _export_step(
    decoder: CudaStepDecoder, bounds: BatchBounds, beam: BeamBounds, device: torch.device
) -> ExportedProgram:
    """Dynamic in prompts, their tokens and rows. Rows are any multiple of the prompts."""
    a, num_prompts, num_tokens = decoder.architecture, bounds.samples, most_tokens(bounds)
    num_rows = num_prompts * max(2, beam.width)
    rows = torch.zeros(num_rows, dtype=torch.int64, device=device)
    borders = torch.arange(num_prompts + 1, dtype=torch.int32, device=device)
    prompt, suffix = _cache(a, 1, num_tokens, device), _cache(a, beam.steps, num_rows, device)
    ancestors = torch.zeros(beam.steps, num_rows, dtype=torch.int64, device=device)
    slot = torch.zeros(1, dtype=torch.int64, device=device)
    row = {0: Dim("rows", min=2, max=num_rows)}
    wide_row, wide_token = {2: row[0]}, {2: Dim("tokens", min=MIN_SAMPLES, max=num_tokens)}
    border = {0: Dim("borders", min=2, max=num_prompts + 1)}
    with torch.no_grad(), expected_warnings():
        return torch.export.export(
            decoder,
            (rows, rows.clone(), borders, prompt, prompt.clone(), suffix, suffix.clone(), ancestors, slot),
            dynamic_shapes=(
                row, row, border, wide_token, wide_token, wide_row, wide_row, {1: row[0]}, None,
            ),
        )  # fmt: skip


def _cache(a: Architecture, slots: int, rows: int, device: torch.device) -> Tensor:
    """Keys or values of every layer."""
    shape = (a.num_layers, slots, rows, a.num_kv_heads, a.head_dim)
    return torch.zeros(shape, dtype=torch.bfloat16, device=device)
