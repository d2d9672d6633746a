"""Kinds of nodes: the short names of ours, or `module:Class` for one of the user's own."""

from __future__ import annotations

import importlib
import inspect

from engine.errors import ConfigError
from engine.graph import Node
from engine.nodes.beam import Beam
from engine.nodes.encoder import Encoder
from engine.nodes.prefill import Prefill
from engine.nodes.tokenizer import Tokenizer
from engine.options import suggest

KINDS: dict[str, type[Node]] = {"tokenizer": Tokenizer, "prefill": Prefill, "beam": Beam, "encoder": Encoder}


def find_kind(kind: str) -> type[Node]:
    """The class behind `kind`; ConfigError says what is missing. Imports the user's module."""
    if kind in KINDS:
        return KINDS[kind]
    module_name, colon, class_name = kind.partition(":")
    if not colon:
        raise ConfigError("kind", kind, f"no such kind; {suggest(kind, KINDS)}; your own is 'module:Class'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            reason = f"no module {error.name!r}: install it, or put its folder on PYTHONPATH"
        else:
            reason = f"importing {module_name!r} failed: {error}"
        raise ConfigError("kind", kind, reason) from error
    except Exception as error:  # whatever the user's module raises while it is imported
        raise ConfigError("kind", kind, f"importing {module_name!r} failed: {error!r}") from error
    found = getattr(module, class_name, None)
    if found is None:
        classes = [name for name, each in vars(module).items() if inspect.isclass(each)]
        raise ConfigError(
            "kind", kind, f"{module_name!r} has no {class_name!r}; {suggest(class_name, classes)}"
        )
    if not (inspect.isclass(found) and issubclass(found, Node)):
        raise ConfigError("kind", kind, f"{class_name!r} is not a subclass of engine.graph.Node")
    missing = sorted(found.__abstractmethods__) + ([] if hasattr(found, "consumes") else ["consumes"])
    if missing:
        raise ConfigError("kind", kind, f"{class_name!r} does not define {', '.join(missing)}")
    return found
