"""Errors of the engine, each for one reader.

ConfigError is for whoever wrote a pipeline file, ArtifactError for whoever deploys an artifact,
ItemFileError for whoever writes item files, InputError for the producer of one request, NodeError for whoever
wrote the failing node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

NO_VALUE = object()  # where nothing was written, as opposed to null


class ConfigError(ValueError):
    """A setting that cannot work: `key` is its dotted path, `value` what was written there, `file` where."""

    def __init__(self, key: str, value: object, reason: str, file: Path | None = None) -> None:
        where = "" if file is None else f"{file}: "
        super().__init__(f"{where}{key} = {value!r}: {reason}")
        self.key = key
        self.value = value
        self.reason = reason
        self.file = file

    def under(self, prefix: str, file: Path | None = None) -> ConfigError:
        """The same error seen from outside: its key below `prefix`, its file named if it had none."""
        key = f"{prefix}.{self.key}" if prefix else self.key
        return ConfigError(key, self.value, self.reason, self.file or file)


class ArtifactError(RuntimeError):
    """An artifact that cannot be built or does not fit this machine; the text says how to mend it."""


class ItemFileError(ValueError):
    """A file of items that cannot be served: `row` counts from 1 (None: all of it), `field` is its column."""

    def __init__(
        self,
        file: Path,
        reason: str,
        row: int | None = None,
        field: str | None = None,
        value: object = NO_VALUE,
    ) -> None:
        place = [] if row is None else [f"row {row}"]
        if field is not None:
            place.append(field if value is NO_VALUE else f"{field} = {value!r:.200}")
        super().__init__(f"{file}: {', '.join(place)}{': ' if place else ''}{reason}")
        self.file, self.row, self.field, self.reason = file, row, field, reason
        self.value = None if value is NO_VALUE else value


class InputError(ValueError):
    """One request that cannot be served: "invalid" in form, or "too_large" for the pipeline's bounds."""

    def __init__(self, code: Literal["invalid", "too_large"], message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code: Literal["invalid", "too_large"] = code
        self.field = field


class NodeError(RuntimeError):
    """One request that failed inside a node, its neighbours unharmed; "model_output": NaN or infinity."""

    def __init__(self, message: str, code: Literal["internal", "model_output"] = "internal") -> None:
        super().__init__(message)
        self.code: Literal["internal", "model_output"] = code
