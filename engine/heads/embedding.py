"""Embedding: the last token's hidden state, cut to its first `dimensions` if the model was trained for that
(Matryoshka), then divided by its Euclidean length."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.heads.head import Head
from engine.options import Options
from engine.values import Embeddings


class EmbeddingOptions(Options):
    dimensions: int | None = Field(default=None, ge=1)


class EmbeddingHead(Head):
    Options = EmbeddingOptions
    produces = Embeddings

    def __init__(self, options: EmbeddingOptions, artifact: Artifact, directory: Path) -> None:
        width = hidden_size(artifact)
        if options.dimensions is not None and options.dimensions > width:
            raise ConfigError("dimensions", options.dimensions, f"the model's states have {width}")
        self._dimensions = options.dimensions or width

    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (normalize(hidden[:, : self._dimensions].float(), dim=-1),)

    def value(self, columns: tuple[Tensor, ...]) -> Embeddings:
        return Embeddings(columns[0])


def hidden_size(artifact: Artifact) -> int:
    """H, the width of a hidden state."""
    return int(artifact.manifest.architecture["hidden_size"])
