"""Plain values: what a message may be made of, and how to speak of one that is wrong.

Plain is None, bool, int, finite float, str, bytes, and lists and maps of these; msgpack's extension types
are not. Contract: checks are iterative (no recursion on foreign data) and name the place of what they
refuse; every quotation is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

Reason = Literal["depth", "items", "text", "number", "type", "key"]
Path = tuple["Path", str | int] | None


@dataclass(frozen=True)
class Limits:
    """How large a message may be before it is refused; the pipeline's own bounds come after."""

    max_bytes: int = 1 << 20  # Kafka's default for a record
    max_depth: int = 8  # a request has 4 levels: request, samples, sample, fields
    max_items: int = 100_000  # list items and map entries together
    max_samples: int = 1024
    max_text_bytes: int = 256 << 10  # one string, UTF-8


class PlainError(ValueError):
    """A value that is not plain or over a limit. `field` is its path, such as samples[3].fields.title."""

    def __init__(self, reason: Reason, field: str | None, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.field = field


_LEAVES: Final = frozenset({str, int, bool, bytes, type(None)})
_NUMBERS: Final = frozenset({int, float})


def check_plain(root: dict[str, Any], limits: Limits, *, texts: bool = True, keys: bool = True) -> None:
    """Raise PlainError unless `root` is plain, finite and within depth, items and text bytes.

    Readers leave out what they know to hold: `texts` for a message shorter than the longest text allowed,
    `keys` where only strings became keys.
    """
    num_items = 0
    stack: list[tuple[Any, int, Path]] = [(root, 1, None)]
    while stack:
        node, depth, path = stack.pop()
        num_items += len(node)
        if depth > limits.max_depth:
            raise PlainError("depth", field_name(path), f"nested deeper than {limits.max_depth} levels")
        if num_items > limits.max_items:
            raise PlainError("items", field_name(path), f"more than {limits.max_items} items in all")
        is_map = isinstance(node, dict)
        if is_map and keys:
            _check_keys(node, path)
        kinds = set(map(type, node.values() if is_map else node))
        if (kinds <= _LEAVES and not texts) or (kinds == {int} and not is_map):
            continue  # token ids and most maps: no loop in Python
        if kinds <= _NUMBERS and not is_map and isfinite(sum(map(float, node))):
            continue  # vectors
        for key, value in node.items() if is_map else enumerate(node):
            if isinstance(value, (dict, list, tuple)) and type(value) in _CONTAINERS:
                stack.append((value, depth + 1, (path, key)))
            else:
                _check_scalar(value, limits, (path, key))


_CONTAINERS: Final = frozenset({dict, list, tuple})  # msgpack's ExtType is a tuple, but not exactly one


def _check_keys(node: dict[Any, Any], path: Path) -> None:
    for key in node:
        if not isinstance(key, str):
            raise PlainError("key", field_name(path), f"map key {quote(key)} is not a string")


def _check_scalar(value: object, limits: Limits, path: Path) -> None:
    if isinstance(value, str):
        if len(value) * 4 > limits.max_text_bytes:
            _check_text(value, limits, path)
    elif isinstance(value, float):
        if not isfinite(value):
            raise PlainError("number", field_name(path), f"{value} is not a finite number")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise PlainError("number", field_name(path), f"{quote(value)} does not fit 64 bits")
    elif value is not None and not isinstance(value, (int, bytes)):
        raise PlainError("type", field_name(path), f"a value of type {type(value).__name__} is not allowed")


def _check_text(value: str, limits: Limits, path: Path) -> None:
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > limits.max_text_bytes:
        message = f"text of {size} bytes, more than {limits.max_text_bytes}: {quote(value)}"
        raise PlainError("text", field_name(path), message)


def field_name(path: Path) -> str | None:
    """The dotted path, bounded: samples[3].fields.title."""
    keys: list[str | int] = []
    while path is not None:
        path, key = path
        keys.append(key)
    return dotted(reversed(keys))


def dotted(keys: Iterable[str | int]) -> str | None:
    """samples[3].fields.title from its keys; None for the message as a whole."""
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key[:64]}" for key in keys)
    return name.removeprefix(".")[:256] or None


def quote(value: object, limit: int = 80) -> str:
    """repr(value) in at most about `limit` characters, without formatting more than that; never recursive."""
    if isinstance(value, (str, bytes)):
        shown = repr(value[:limit])
        return shown if len(value) <= limit else f"{shown}... ({len(value)} long)"
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return f"a {'map' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return f"a {type(value).__name__}"
