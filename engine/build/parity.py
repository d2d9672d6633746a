"""How far a compiled package is from transformers: the same samples, packed here, one at a time there.

A build whose error is over the stated tolerance fails: an artifact that exists was within it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from engine.build.probes import probe_samples
from engine.errors import ArtifactError
from engine.manifest import Parity
from engine.models.checkpoint import Checkpoint
from engine.models.plan import Plan
from engine.packed import BatchBounds, PackedBatch, pack
from engine.prefixes import SHARE_ALL, Prefixes

# (largest, mean) difference. float32: two orders of summation; usually 3e-5, but a sample that drives
# activations into the ten thousands shows 1e-3 in transformers too, between its runs alone and in a batch.
# bfloat16: 8 bits of mantissa through all layers; on SmolLM2-135M 0.04 on average.
_TOLERANCES = {"float32": (5e-3, 2e-4), "bfloat16": (1.0, 0.15), "fp8": (4.0, 0.5), "int8": (4.0, 0.5)}
_TOP = 64  # the reference's likeliest tokens: what scores and top-k are made of

Forward = Callable[[PackedBatch], Tensor]


def tolerated_as(plan: Plan | None, dtype: str) -> str:
    """Whose tolerances a package of `plan` has: its 8 bits', or those of its `dtype`."""
    if plan is None or not plan.quantises:
        return dtype
    return "int8" if plan.rotated else "fp8"


def measure_parity(
    checkpoint: Checkpoint, forward: Forward, bounds: BatchBounds, dtype: str, *, prefixes: bool = False
) -> Parity:
    """`forward` gives the package's float32 hidden states; ArtifactError where it is out of tolerance.

    `prefixes`: each sample also as two that share all they can: that is another way through the package.
    """
    reference = checkpoint.reference
    padding = reference.config.pad_token_id
    samples = probe_samples(
        checkpoint.tokenizer,
        checkpoint.architecture.vocab_size,
        bounds.tokens_per_sample,
        frozenset() if padding is None else frozenset({padding}),
    )
    found = torch.cat([forward(pack(batch)) for batch in _batches(samples, bounds)])
    with torch.inference_mode():
        expected = torch.cat([_reference_rows(checkpoint, sample) for sample in samples])
    if prefixes and bounds.samples >= 2:
        twice = [Prefixes(None, SHARE_ALL).pack([[tuple(sample)] * 2])[0] for sample in samples]
        found = torch.cat([found, *(forward(packed)[:1] for packed in twice)])
        expected = expected.repeat(2, 1)
    quantity, errors, agreement = _compare(checkpoint, found, expected)
    largest, mean = _TOLERANCES[dtype]
    parity = Parity(
        reference=f"transformers {transformers.__version__}, float32, one sample at a time",
        quantity=quantity,
        samples=len(samples),
        tokens=sum(map(len, samples)),
        max_abs_error=float(errors.max()),
        mean_abs_error=float(errors.mean()),
        top1_agreement=agreement,
        max_abs_tolerance=largest,
        mean_abs_tolerance=mean,
    )
    # Written so that a NaN fails too.
    if not (parity.max_abs_error <= largest and parity.mean_abs_error <= mean):
        raise ArtifactError(
            f"parity: {quantity} differs from transformers by up to {parity.max_abs_error:.3g}, on average "
            f"{parity.mean_abs_error:.3g}; {dtype} allows {largest:g} and {mean:g}"
        )
    return parity


def _batches(samples: Sequence[list[int]], bounds: BatchBounds) -> list[list[list[int]]]:
    batches: list[list[list[int]]] = [[]]
    for sample in samples:
        full = len(batches[-1]) == bounds.samples
        if full or sum(map(len, batches[-1])) + len(sample) > bounds.tokens:
            batches.append([])
        batches[-1].append(sample)
    return [batch for batch in batches if batch]


def _reference_rows(checkpoint: Checkpoint, sample: list[int]) -> Tensor:
    model: Any = checkpoint.reference
    input_ids = torch.tensor([sample], device=model.device)
    hidden: Tensor = model.base_model(input_ids, use_cache=False).last_hidden_state[:, -1]
    return hidden.float().cpu()


def _compare(
    checkpoint: Checkpoint, found: Tensor, expected: Tensor
) -> tuple[Literal["log-probability", "score", "hidden state"], Tensor, float | None]:
    """Errors by sample and entry. Hidden states: relative to the reference's rms in that sample."""
    head = checkpoint.lm_head if checkpoint.lm_head is not None else checkpoint.score
    if head is None:
        scale = expected.square().mean(-1, keepdim=True).sqrt()
        return "hidden state", ((found - expected) / scale).abs(), None
    ours, theirs = found @ head.float().T, expected @ head.float().T
    agreement = float((ours.argmax(-1) == theirs.argmax(-1)).float().mean())
    if checkpoint.score is not None:
        return "score", (ours - theirs).abs(), agreement
    top = theirs.topk(min(_TOP, theirs.shape[-1]), dim=-1).indices
    ours, theirs = ours.log_softmax(-1), theirs.log_softmax(-1)
    return "log-probability", (ours.gather(-1, top) - theirs.gather(-1, top)).abs(), agreement
