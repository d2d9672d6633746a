"""How far a compiled search is from the plain one over transformers, which keeps a cache of its own.

A build whose error is over the stated tolerance fails. Scores are compared rank by rank: two sequences whose
scores are nearly equal may change places without being an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from engine.beam.bounds import BeamBounds
from engine.beam.head_weight import HeadWeight
from engine.build.accuracy import model_of
from engine.build.parity import tolerated_as
from engine.build.plain_beams import search_plainly
from engine.build.probes import probe_samples
from engine.build.spec import BuildSpec
from engine.build.winners import Search, count_winners, searcher
from engine.errors import ArtifactError
from engine.manifest import PACKAGE, WEIGHTS, Beam, BeamParity
from engine.models.checkpoint import Checkpoint
from engine.models.decoder import no_constant
from engine.models.plan import Plan
from engine.models.weights import NARROW_HEAD, NARROW_HEAD_SCALE
from engine.quant.ranks import Ranks
from engine.quant.texts import Text
from engine.runtime.beam_lanes import BeamLanes
from engine.runtime.lanes import LanePool
from engine.runtime.native import load_weights

# Sums of steps + 1 log-probabilities, each as far off as parity.py says.
_TOLERANCES = {"float32": 1e-2, "bfloat16": 3.0, "fp8": 6.0, "int8": 6.0}
_WIDTH, _PROMPTS, _LENGTHS = 4, 4, range(4, 65)  # what a plain search can bear


def measure_beam(
    spec: BuildSpec, bounds: BeamBounds, checkpoint: Checkpoint, folder: Path, plan: Plan | None,
    texts: Sequence[Text] = (),
) -> tuple[Beam, Ranks | None]:  # fmt: skip
    """The manifest's entry about the packages in `folder`, and their winners on `texts`; `plan`: of a build
    with a precision."""
    assert checkpoint.lm_head is not None
    device, architecture = torch.device(spec.device), checkpoint.architecture
    weights = load_weights(folder / WEIGHTS, device)
    narrow = (weights.pop(NARROW_HEAD, None), weights.pop(NARROW_HEAD_SCALE, None))
    pool = LanePool(
        folder / PACKAGE,
        weights,
        spec.bounds,
        vocab_size=architecture.vocab_size,
        device=device,
        lanes=1,
        threads=torch.get_num_threads(),
        no_constant=no_constant(architecture, spec.torch_dtype, device),
    )
    try:
        weight = checkpoint.lm_head.to(spec.device, spec.torch_dtype)
        kept = None if plan is None else spec.bounds
        head = HeadWeight(weight, *narrow)
        lanes = BeamLanes(pool, folder, bounds, head, dataclasses.asdict(architecture), kept)
        run, longest = searcher(lanes), spec.bounds.tokens_per_sample
        precision = tolerated_as(plan, spec.dtype_name)
        parity = measure_beam_parity(checkpoint, run, bounds, longest, precision)
        ranks = count_winners(model_of(checkpoint), texts, run, bounds) if texts else None
        return Beam(bounds=bounds, parity=parity), ranks
    finally:
        pool.close()


def measure_beam_parity(
    checkpoint: Checkpoint, run: Search, bounds: BeamBounds, longest: int, precision: str
) -> BeamParity:
    """ArtifactError where the scores are out of tolerance. `longest`: tokens a prompt may have."""
    padding = checkpoint.reference.config.pad_token_id
    avoid = frozenset() if padding is None else frozenset({padding})
    probes = probe_samples(checkpoint.tokenizer, checkpoint.architecture.vocab_size, longest, avoid)
    prompts = [probe for probe in probes if len(probe) in _LENGTHS] or probes
    prompts = prompts[: min(_PROMPTS, bounds.prompts)]
    width = min(_WIDTH, bounds.width)
    tokens, scores = run(prompts, width, bounds.steps)
    errors, same = [], 0
    for index, prompt in enumerate(prompts):
        plain = search_plainly(checkpoint.reference, prompt, width, bounds.steps)
        expected = torch.tensor(plain.scores)
        errors.append(float((scores[index, : len(expected)] - expected).abs().max()))
        same += len(set(plain.tokens) & set(map(tuple, tokens[index].tolist())))
    parity = BeamParity(
        reference=f"a search over transformers {transformers.__version__}, float32",
        prompts=len(prompts),
        width=width,
        steps=bounds.steps,
        max_abs_error=max(errors),
        same_sequences=same / (width * len(prompts)),
        max_abs_tolerance=_TOLERANCES[precision],
    )
    if not parity.max_abs_error <= parity.max_abs_tolerance:  # so that a NaN fails too
        raise ArtifactError(
            f"parity of beams: a score differs from transformers' by {parity.max_abs_error:.3g}; {precision} "
            f"allows {parity.max_abs_tolerance:g}"
        )
    return parity
