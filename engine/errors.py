"""Errors of the engine, each for one reader.

ConfigError is for whoever wrote a pipeline file, ArtifactError for whoever deploys an artifact,
InputError for the producer of one request, NodeError for whoever wrote the failing node.
"""

from __future__ import annotations

from typing import Literal


class ConfigError(ValueError):
    """A setting that cannot work. `key` is its dotted path, `value` what was written there."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(f"{key} = {value!r}: {reason}")
        self.key = key
        self.value = value
        self.reason = reason


class ArtifactError(RuntimeError):
    """An artifact that cannot be built or does not fit this machine; the text says how to mend it."""


class InputError(ValueError):
    """One request that cannot be served: "invalid" in form, or "too_large" for the pipeline's bounds."""

    def __init__(self, code: Literal["invalid", "too_large"], message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code: Literal["invalid", "too_large"] = code
        self.field = field


class NodeError(RuntimeError):
    """One request that failed inside a node, its neighbours unharmed."""
