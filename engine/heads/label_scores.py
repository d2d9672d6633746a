"""Label scores: the logits of a few next tokens, each standing for a label.

    logits[s, l] = hidden[s] . head_weight[token(l)]
    log_norm[s]  = logsumexp over the labels, or over the whole vocabulary

Normalised over the labels only their rows of the head are multiplied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.heads.head import Head, vocabulary_logits, vocabulary_weight
from engine.options import Options
from engine.values import Scores


class LabelScoresOptions(Options):
    """Each label's text must be one token, as it follows the prompt: mind its leading space."""

    labels: dict[str, str] = Field(min_length=1)
    normalize: Literal["labels", "vocabulary"] = "labels"


class LabelScores(Head):
    Options = LabelScoresOptions
    produces = Scores

    def __init__(self, options: LabelScoresOptions, artifact: Artifact, directory: Path) -> None:
        if options.normalize == "labels" and len(options.labels) == 1:
            reason = "a single label always has probability 1; name another, or set normalize: vocabulary"
            raise ConfigError("labels", options.labels, reason)
        weight = vocabulary_weight(artifact, "label_scores")
        token_ids = label_tokens(artifact.tokenizer.backend_tokenizer, options.labels)
        self.labels = tuple(options.labels)
        self._vocabulary = weight if options.normalize == "vocabulary" else None
        self._token_ids = torch.tensor(token_ids, device=weight.device)
        self._rows = weight[self._token_ids].float()

    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        if self._vocabulary is None:
            logits = hidden.float() @ self._rows.T
            return logits, logits.logsumexp(-1)
        everything = vocabulary_logits(hidden, self._vocabulary)
        return everything[:, self._token_ids], everything.logsumexp(-1)

    def value(self, columns: tuple[Tensor, ...]) -> Scores:
        logits, log_norm = columns
        assert self.labels is not None
        return Scores(self.labels, logits, log_norm)


def label_tokens(tokenizer: Any, labels: dict[str, str]) -> list[int]:
    """The token of each label's text; ConfigError unless it is exactly one, and no other label's."""
    owners: dict[int, str] = {}
    for label, text in labels.items():
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) != 1:
            parts = " ".join(repr(tokenizer.decode([number])) for number in encoding.ids) or "none"
            reason = f"a label is one token, this is {len(encoding.ids)} ({parts}); choose a shorter word"
            raise ConfigError(f"labels.{label}", text, reason + _space_hint(tokenizer, text))
        if encoding.ids[0] in owners:
            raise ConfigError(f"labels.{label}", text, f"is the token of {owners[encoding.ids[0]]!r} too")
        owners[encoding.ids[0]] = label
    return list(owners)


def _space_hint(tokenizer: Any, text: str) -> str:
    """Words mostly are one token with a space before them, and several without."""
    spaced = f" {text.strip()}"
    one_token = len(tokenizer.encode(spaced, add_special_tokens=False).ids) == 1
    return f", or write {spaced!r}, which is one" if one_token and spaced != text else ""
