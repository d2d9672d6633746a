"""What every model node asks of its tokens: at load that they fit its vocabulary, at each run its bounds."""

from __future__ import annotations

from engine.errors import ConfigError, InputError
from engine.graph import NodeContext
from engine.store import OpenedArtifact
from engine.values import Tokens


class TokenCheck:
    """ConfigError where the pipeline's bounds or tokenizer do not fit the artifact."""

    def __init__(self, artifact: str, opened: OpenedArtifact, context: NodeContext) -> None:
        for name, source in context.inputs.items():
            if source.vocabulary is not None and source.vocabulary != opened.vocabulary:
                reason = f"its tokenizer is not the one that {name!r} tokenizes with"
                raise ConfigError("artifact", artifact, reason)
        context.bounds.check_artifact(artifact, opened.artifact.bounds)
        self._bounds = context.bounds
        self._vocab_size = int(opened.artifact.manifest.architecture["vocab_size"])

    def __call__(self, tokens: Tokens) -> InputError | None:
        """A user's own node may have made the tokens: nothing out of range may reach the compiled package."""
        try:
            self._bounds.check_tokens(tokens)
        except InputError as error:
            return error
        low, high = min(map(min, tokens.ids)), max(map(max, tokens.ids))
        if low < 0 or high >= self._vocab_size:
            worst = low if low < 0 else high
            return InputError("invalid", f"token id {worst} is outside the vocabulary of {self._vocab_size}")
        return None
