"""Score: the linear layer that a `*ForSequenceClassification` checkpoint brings, with its own labels.

logits[s] = score_weight . hidden[s]
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.heads.head import Head, class_log_norm
from engine.options import Options
from engine.values import Scores


class ScoreHead(Head):
    produces = Scores

    def __init__(self, options: Options, artifact: Artifact, directory: Path) -> None:
        if artifact.score_weight is None or artifact.manifest.labels is None:
            reason = (
                f"artifact {artifact.name!r} has none: build it from a *ForSequenceClassification checkpoint"
            )
            raise ConfigError("head", "score", reason)
        self.labels = artifact.manifest.labels
        self._weight = artifact.score_weight.float()

    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        logits = hidden.float() @ self._weight.T
        return logits, class_log_norm(logits)

    def value(self, columns: tuple[Tensor, ...]) -> Scores:
        logits, log_norm = columns
        assert self.labels is not None
        return Scores(self.labels, logits, log_norm)
