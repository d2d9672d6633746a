"""What flows along the edges of a pipeline's DAG: one value a request.

Tensors here are on the CPU, contiguous, float32; a node that computes elsewhere copies back first.
Sample is structural, so that the wire's own class fits without either side importing the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Sample(Protocol):
    """One prompt: exactly one of text, fields (for the pipeline's template) or token_ids is set."""

    @property
    def text(self) -> str | None: ...
    @property
    def fields(self) -> Mapping[str, object] | None: ...
    @property
    def token_ids(self) -> Sequence[int] | None: ...


@dataclass(frozen=True)
class Samples:
    """The request itself: the value of the reserved input `request`."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Tokens:
    """Token ids of each sample, none of them empty."""

    ids: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(sample) for sample in self.ids)


@dataclass(frozen=True)
class Scores:
    """Logits by label: logits[num_samples, num_labels]; log_norm[num_samples] is the log-sum-exp that
    turns them into log-probabilities (over the labels, or over the vocabulary)."""

    labels: tuple[str, ...]
    logits: Tensor
    log_norm: Tensor


@dataclass(frozen=True)
class TopK:
    """The k likeliest next tokens: token_ids int64[num_samples, k], logprobs[num_samples, k], texts alike."""

    token_ids: Tensor
    logprobs: Tensor
    texts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Embeddings:
    """vectors[num_samples, width]."""

    vectors: Tensor


@dataclass(frozen=True)
class Rows:
    """What the reply carries: one map of plain values a sample, in request order."""

    rows: tuple[dict[str, object], ...]
