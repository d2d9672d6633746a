"""A head: hidden states of each sample's last token -> what the node gives, one value a request.

Made at load from its own settings and the opened artifact; holds tensors on the artifact's device and never
changes them, so lanes share it. `compute` runs on a lane's thread and stream, `value` on the CPU afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.options import Options


class Head(ABC):
    """Subclasses name their settings and the type of their value."""

    Options: ClassVar[type[Options]] = Options
    produces: ClassVar[type]
    labels: tuple[str, ...] | None = None  # of the Scores it gives

    @abstractmethod
    def __init__(self, options: Any, artifact: Artifact, directory: Path) -> None:
        """ConfigError with a key relative to the node where artifact and settings do not fit."""

    @abstractmethod
    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """hidden[S, H], in the artifact's dtype -> tensors of S rows each, on the same device."""

    @abstractmethod
    def value(self, columns: tuple[Tensor, ...]) -> object:
        """The rows of one request out of what `compute` gave, on the CPU, floats as float32."""


def vocabulary_weight(artifact: Artifact, head: str) -> Tensor:
    """head_weight[V, H]; ConfigError for a checkpoint that brought no language model head."""
    if artifact.head_weight is None:
        reason = f"artifact {artifact.name!r} has no language model head; use another head"
        raise ConfigError("head", head, reason)
    return artifact.head_weight


def class_log_norm(logits: Tensor) -> Tensor:
    """log_norm[S] of a classifier's logits[S, C]: over its classes; a single logit stands against a zero, so
    that its probability is the sigmoid it was trained with."""
    return softplus(logits[:, 0]) if logits.shape[1] == 1 else logits.logsumexp(-1)


def vocabulary_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden[S, H] times weight[V, H] -> float32[S, V]; for bfloat16 on CUDA too."""
    if hidden.is_cuda and hidden.dtype is torch.bfloat16:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    return torch.mm(hidden, weight.T).float()
