"""Rows for a reply out of one value of a graph: plain maps, one a sample. Pure functions; any thread.

Scores  -> {"label": the likeliest, "scores": {label: number}}
TopK    -> {"top_k": [{"token_id", "text", "logprob"}, ...]}
Embeddings -> {"embedding": [numbers], or bytes: float32, little-endian}
mapping -> {"value": ..., "label": ..., "score": its probability}, or {"value": the expected one}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import Field
from torch import Tensor

from engine.errors import ConfigError
from engine.options import Options, suggest
from engine.values import Embeddings, Scores, TopK

RowList: TypeAlias = list[dict[str, object]]
Plain: TypeAlias = str | int | float | bool | None


def probabilities(scores: Scores) -> Tensor:
    """Of each label, over whatever the model's head normalised over: [num_samples, num_labels]."""
    return logprobs(scores).exp()


def logprobs(scores: Scores) -> Tensor:
    return scores.logits - scores.log_norm[:, None]


def softmax_rows(scores: Scores) -> RowList:
    return _score_rows(scores.labels, probabilities(scores))


def logprob_rows(scores: Scores) -> RowList:
    return _score_rows(scores.labels, logprobs(scores))


def logit_rows(scores: Scores) -> RowList:
    return _score_rows(scores.labels, scores.logits)


def sigmoid_rows(scores: Scores) -> RowList:
    """Every label by itself, as multi-label classifiers are trained; they need not add up to 1."""
    return _score_rows(scores.labels, scores.logits.sigmoid())


def top_k_rows(top: TopK) -> RowList:
    samples = zip(top.token_ids.tolist(), top.texts, top.logprobs.tolist(), strict=True)
    return [
        {
            "top_k": [
                {"token_id": token_id, "text": text, "logprob": logprob}
                for token_id, text, logprob in zip(*columns, strict=True)
            ]
        }
        for columns in samples
    ]


def embedding_rows(embeddings: Embeddings) -> RowList:
    return [{"embedding": vector} for vector in embeddings.vectors.tolist()]


def embedding_byte_rows(embeddings: Embeddings) -> RowList:
    """A quarter of the bytes of a list: numpy.frombuffer(row, "<f4")."""
    vectors = embeddings.vectors.contiguous().numpy().astype("<f4", copy=False)
    return [{"embedding": vector.tobytes()} for vector in vectors]


class MappingOptions(Options):
    """A value for each label. pick: that of the likeliest label (`otherwise`, if its probability is below
    `threshold`), or the mean of all, weighted by their probabilities."""

    values: dict[str, Plain] = Field(min_length=1)
    pick: Literal["argmax", "expected"] = "argmax"
    threshold: float | None = Field(default=None, ge=0, le=1)
    otherwise: Plain = None


@dataclass(frozen=True)
class LabelMapping:
    """Scores -> rows by fixed values; checked against the labels where they are known at load."""

    options: MappingOptions

    def __call__(self, scores: Scores) -> RowList:
        likely = probabilities(scores)
        if self.options.pick == "expected":
            weights = likely / likely.sum(-1, keepdim=True)
            values = weights.new_tensor([float(self._number(label)) for label in scores.labels])
            return [{"value": value} for value in (weights @ values).tolist()]
        best, places = likely.max(-1)
        picked = zip(places.tolist(), best.tolist(), strict=True)
        return [self._row(scores.labels[place], score) for place, score in picked]

    def check(self, labels: Sequence[str] | None) -> None:
        """ConfigError, its key below `mapping`, unless every label has a value that can be picked."""
        options = self.options
        if options.pick == "expected":
            for label in options.values:
                self._number(label)
            if options.threshold is not None or options.otherwise is not None:
                raise ConfigError("pick", options.pick, "threshold and otherwise belong to argmax")
        if labels is None:
            return
        for label, value in options.values.items():
            if label not in labels:
                raise ConfigError(f"values.{label}", value, "no such label; " + suggest(label, labels))
        for label in labels:
            if label not in options.values:
                raise ConfigError(f"values.{label}", None, "this label has no value")

    def _number(self, label: str) -> float:
        value = self.options.values[label]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"values.{label}", value, "an expected value needs numbers")
        return value

    def _row(self, label: str, score: float) -> dict[str, object]:
        threshold = self.options.threshold
        sure = threshold is None or score >= threshold
        value = self.options.values[label] if sure else self.options.otherwise
        return {"value": value, "label": label, "score": score}


def _score_rows(labels: tuple[str, ...], numbers: Tensor) -> RowList:
    rows: list[Any] = numbers.tolist()
    best: list[int] = numbers.argmax(-1).tolist()
    return [
        {"label": labels[place], "scores": dict(zip(labels, row, strict=True))}
        for place, row in zip(best, rows, strict=True)
    ]
