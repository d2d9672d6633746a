"""What flows along the edges of a pipeline's DAG: one value a request.

Tensors here are on the CPU, contiguous, float32; a node that computes elsewhere copies back first.
Sample is structural, so that the wire's own class fits without either side importing the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from engine.beam.legal import LegalSet


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
    """The request itself: the value of the reserved input `request`. `options` are its own, unchecked."""

    samples: tuple[Sample, ...]
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Tokens:
    """Token ids of each sample, none of them empty, and the options that came with the request."""

    ids: tuple[tuple[int, ...], ...]
    options: Mapping[str, object] = field(default_factory=dict)

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
class SampleBeams:
    """The best sequences of one prompt, best first: n of them, fewer than asked for where fewer are legal.

    A sequence is token_ids[i, : lengths[i]], with the token that ended it; what comes after is padding.
    """

    token_ids: Tensor  # int64[n, steps + 1]
    lengths: Tensor  # int64[n]
    scores: Tensor  # [n], log-probability of the whole sequence (or its mean a token, where the node says so)
    finished: Tensor  # bool[n], ended before it was as long as it may be: by an end token or a leaf
    leaves: Tensor | None  # int64[n], the node of `Beams.legal` where the sequence ends; None: all was legal


@dataclass(frozen=True)
class Beams:
    """The beams of each sample. `legal` is the version of the legal sequences that bounded all of them;
    `decode` turns sequences of token ids into texts, for whoever wants texts; `top_n` is the most beams a row
    that the request asked for."""

    samples: tuple[SampleBeams, ...]
    legal: LegalSet | None = None
    decode: Callable[[Sequence[Sequence[int]]], list[str]] | None = None
    top_n: int | None = None


@dataclass(frozen=True)
class Rows:
    """What the reply carries: one map of plain values a sample, in request order."""

    rows: tuple[dict[str, object], ...]
