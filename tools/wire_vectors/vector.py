"""One vector: bytes, and what they mean or why they are refused. Data only; how it becomes two files.

The bytes are packed here from literals, never by schemas.codec: that one is tested against them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack

BYTES_KEY = "$bytes"  # how JSON tells of msgpack's bytes: {"$bytes": "0a0b"}


@dataclass(frozen=True)
class Refusal:
    """The error of a broken message; request_id as far as it can be read."""

    code: str
    field: str | None
    request_id: str | None


@dataclass(frozen=True)
class Vector:
    """`meaning` or `refusal`.

    `encodes_to`: the vector whose bytes a writer makes of the same meaning; itself, unless these bytes say it
    in another way. `limits`: smaller than a reader's own, to keep the file small.
    """

    name: str
    about: str
    kind: Literal["request", "reply"]
    data: bytes
    meaning: Mapping[str, Any] | None = None
    encodes_to: str | None = None
    refusal: Refusal | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """The JSON file."""
        said: dict[str, Any] = {"about": self.about, "kind": self.kind}
        if self.limits:
            said["limits"] = dict(self.limits)
        if self.refusal is not None:
            found = self.refusal
            said["error"] = {"code": found.code, "field": found.field, "request_id": found.request_id}
        else:
            said["encodes_to"] = self.encodes_to or self.name
            said["meaning"] = self.meaning
        return json.dumps(said, indent=1, default=show_bytes) + "\n"


def show_bytes(value: object) -> dict[str, str]:
    """For json.dumps."""
    if isinstance(value, bytes):
        return {BYTES_KEY: value.hex()}
    raise TypeError(f"{value!r} has no place in a message")


def read_bytes(value: dict[str, Any]) -> Any:
    """For json.loads: the opposite of show_bytes."""
    return bytes.fromhex(value[BYTES_KEY]) if set(value) == {BYTES_KEY} else value


def packed(value: object) -> bytes:
    """msgpack in its shortest form, maps in the order that they are written in."""
    data: bytes = msgpack.packb(value)
    return data
