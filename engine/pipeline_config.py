"""A pipeline as written: the YAML file's contract and its reader. Kinds are resolved later, at Pipeline.open.

YAML is read as version 1.2 means it: only true and false are booleans, so a label named yes or no stays text;
and a key given twice is an error instead of the last one winning.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, PrivateAttr

from engine.bounds import Bounds
from engine.errors import ConfigError
from engine.options import Options, read_options


class NodeConfig(Options):
    """One node. Settings beside these two belong to its kind. Without inputs it reads the request."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(min_length=1)
    inputs: list[str] = Field(default=["request"], min_length=1)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class PipelineConfig(Options):
    """A named DAG with its bounds. `file` is where it was read from; relative paths start in its folder."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    bounds: Bounds
    nodes: dict[str, NodeConfig] = Field(min_length=1)
    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        return self._file


def read_pipeline(path: Path) -> PipelineConfig:
    """The pipeline written in `path`; ConfigError names the file, the key and the value."""
    try:
        # The C loader cannot be taught our two rules; these files are small.
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigError("pipeline", str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError("pipeline", str(path), f"is not UTF-8 text: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError("pipeline", str(path), f"is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError("pipeline", data, "a pipeline file is a map with name, bounds and nodes", path)
    try:
        config = read_options(PipelineConfig, data)
    except ConfigError as error:
        raise error.under("", path) from None
    config._file = path
    return config


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 booleans and no repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    letter: [pair for pair in resolvers if pair[0] != "tag:yaml.org,2002:bool"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), ["t", "f"])
