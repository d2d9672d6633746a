"""The two packages of a beam search: the prompts' pass, and the decode step that serves every step.

Beside the forward's own package, over the same weights. Minutes of compilation each for a small model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from engine.beam.bounds import MAX_PROMPT, BeamBounds
from engine.build.compilation import compile_package, expected_warnings, export_decoder
from engine.build.compiler import CompilerCheck
from engine.build.native import BEAM_SOURCES, build_native, default_cache
from engine.build.spec import BuildSpec
from engine.errors import ConfigError
from engine.manifest import PROMPT_PACKAGE, STEP_PACKAGE
from engine.models.architecture import Architecture
from engine.models.beam_decoder import PromptDecoder, StepDecoder
from engine.models.checkpoint import Checkpoint
from engine.packed import MIN_SAMPLES, BatchBounds
from engine.runtime.native import BEAM_LIBRARY, load_beam_native


def check_beam(spec: BuildSpec, checkpoint: Checkpoint) -> None:
    """ConfigError for what a search cannot serve; quick, so that it comes before minutes of compilation."""
    if spec.beam is None:
        return
    if checkpoint.lm_head is None:
        raise ConfigError("beam_width", spec.beam.width, "the checkpoint has no language model head")
    if spec.bounds.tokens_per_sample > MAX_PROMPT:
        reason = f"prompts of beams have at most {MAX_PROMPT}"
        raise ConfigError("bounds.tokens_per_sample", spec.bounds.tokens_per_sample, reason)
    if spec.beam.prompts > spec.bounds.samples:
        reason = f"exceeds bounds.samples = {spec.bounds.samples}"
        raise ConfigError("beam_prompts", spec.beam.prompts, reason)


def write_beam_library(spec: BuildSpec, compiler: CompilerCheck, folder: Path) -> None:
    """beam.so in `folder`, and in this process."""
    shutil.copyfile(
        build_native(compiler, spec.cache or default_cache(), BEAM_SOURCES), folder / BEAM_LIBRARY
    )
    load_beam_native(folder / BEAM_LIBRARY)


def write_beam_packages(
    spec: BuildSpec,
    beam: BeamBounds,
    checkpoint: Checkpoint,
    weights: dict[str, torch.Tensor],
    folder: Path,
    progress: Callable[[str], None],
) -> None:
    """`weights`: the decoder's tensors on the device, in the artifact's dtype."""
    architecture, device = checkpoint.architecture, torch.device(spec.device)
    longest = spec.bounds.tokens_per_sample
    progress("compiling the prompts' pass")
    prompts = BatchBounds(beam.prompts, spec.bounds.tokens, longest)
    decoder = PromptDecoder.from_weights(architecture, weights, longest)
    compile_package(export_decoder(decoder, prompts, device), folder / PROMPT_PACKAGE)
    progress("compiling the decode step")
    step = StepDecoder.from_weights(architecture, weights, longest)
    exported = export_step(step, architecture, spec.bounds.tokens, beam, spec.torch_dtype, device)
    compile_package(exported, folder / STEP_PACKAGE)


def export_step(
    decoder: StepDecoder, a: Architecture, tokens: int, beam: BeamBounds, dtype: torch.dtype,
    device: torch.device,
) -> ExportedProgram:  # fmt: skip
    """The step's graph, dynamic in prompts, their tokens and rows. Rows are any multiple of the prompts."""
    num_prompts = max(beam.prompts, MIN_SAMPLES)
    num_rows = num_prompts * max(2, beam.width)
    num_tokens = max(tokens, num_prompts) + 1  # with the token of the sample that `pack` may add
    rows = torch.zeros(num_rows, dtype=torch.int64, device=device)
    borders = torch.arange(num_prompts + 1, dtype=torch.int32, device=device)
    head = (a.num_kv_heads, a.head_dim)
    prompt = torch.empty(a.num_layers, num_tokens, *head, dtype=dtype, device=device)
    suffix = torch.empty(a.num_layers, beam.steps, num_rows, *head, dtype=dtype, device=device)
    ancestors = torch.zeros(beam.steps, num_rows, dtype=torch.int64, device=device)
    row_dim = Dim("rows", min=2, max=num_rows)
    token_dim = Dim("tokens", min=MIN_SAMPLES, max=num_tokens)
    border_dim = Dim("borders", min=2, max=num_prompts + 1)
    with torch.no_grad(), expected_warnings():
        return torch.export.export(
            decoder,
            (rows, rows.clone(), borders, prompt, prompt.clone(), suffix, suffix.clone(), ancestors),
            dynamic_shapes=(
                {0: row_dim}, {0: row_dim}, {0: border_dim}, {1: token_dim}, {1: token_dim}, {2: row_dim},
                {2: row_dim}, {1: row_dim},
            ),
        )  # fmt: skip
