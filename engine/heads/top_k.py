"""Top k: the k likeliest next tokens of the whole vocabulary, with log-probabilities, likeliest first."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from torch import Tensor

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.heads.head import Head, vocabulary_logits, vocabulary_weight
from engine.options import Options
from engine.values import TopK


class TopKOptions(Options):
    k: int = Field(ge=1)


class TopKHead(Head):
    Options = TopKOptions
    produces = TopK

    def __init__(self, options: TopKOptions, artifact: Artifact, directory: Path) -> None:
        self._weight = vocabulary_weight(artifact, "top_k")
        self._k = options.k
        if options.k > len(self._weight):
            raise ConfigError("k", options.k, f"the vocabulary has {len(self._weight)} tokens")
        self._tokenizer = artifact.tokenizer.backend_tokenizer

    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        logprobs, token_ids = vocabulary_logits(hidden, self._weight).log_softmax(-1).topk(self._k)
        return token_ids, logprobs

    def value(self, columns: tuple[Tensor, ...]) -> TopK:
        token_ids, logprobs = columns
        texts = tuple(
            tuple(self._tokenizer.decode([number], skip_special_tokens=False) for number in row)
            for row in token_ids.tolist()
        )
        return TopK(token_ids, logprobs, texts)
