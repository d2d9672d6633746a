"""Requests that are read: what a writer makes, then other ways to say the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

from tools.wire_vectors.vector import Vector, packed


def written() -> Iterator[Vector]:
    """Each is its own shortest form: whoever writes the meaning down writes these bytes."""

    def vector(name: str, about: str, **message: Any) -> Vector:
        meaning = {"v": 1, "id": "r-7f3a", "pipeline": "relevance", **message}
        return Vector(f"request-{name}", about, "request", packed(meaning), meaning)

    shoes = {"query": "red shoes", "title": "Nike runner"}
    yield vector("text", "the smallest: one text, no deadline", samples=[{"text": "red shoes"}])
    yield vector(
        "texts",
        "what the Java and Go producers of schemas/README.md write: texts and a timeout",
        samples=[{"text": "red shoes"}, {"text": "naïve café 東京 👟"}],
        timeout_ms=2000,
    )
    yield vector(
        "fields",
        "fields for a template, with a string and an integer id; every kind of field value",
        samples=[
            {"id": "sku-1", "fields": shoes},
            {"id": 42, "fields": {"price": 12.5, "stock": -3, "new": True, "old": False, "note": ""}},
        ],
    )
    yield vector(
        "token_ids",
        "a prompt tokenized by the producer; one byte, two, four; the largest there is; none at all",
        samples=[{"token_ids": [0, 127, 128, 255, 256, 65535, 65536, 2**31 - 1]}, {"token_ids": []}],
    )
    yield vector(
        "deadlines",
        "both deadlines (deadline_ms counts), a priority, options",
        samples=[{"text": "red shoes"}],
        deadline_ms=1_760_000_000_123,
        timeout_ms=20,
        priority=9,
        options={"top_k": 3, "lang": "de", "weights": [0.5, 0.25], "raw": b"\x00\xff", "off": None},
    )
    yield vector("timeout", "a timeout alone", samples=[{"text": "red shoes"}], timeout_ms=20)
    yield vector(
        "unicode",
        "UTF-8 of one to four bytes, a combining mark, right to left, a zero byte; in ids and keys too",
        id="é-東京-👟",
        samples=[{"id": "ключ", "fields": {"título": "e\u0301 שלום\u0000 🎈", "": "empty key"}}],
    )
    yield vector(
        "numbers",
        "the ends of what 64 bits hold, and negative and far deadlines, which are not refused on the wire",
        samples=[{"id": -(2**63), "text": ""}, {"id": 2**64 - 1, "text": ""}],
        deadline_ms=-1,
        timeout_ms=2**63,
        options={"tiny": 5e-324, "huge": 1.7976931348623157e308, "minus_zero": -0.0},
    )
    yield vector("longest_id", "ids of 128 characters, 256 bytes", id="é" * 128, samples=[{"text": "x"}])
    yield vector(
        "long_lengths",
        "lengths that need two bytes: 16 samples, 16 fields, a string of 256 bytes",
        samples=[{"fields": {f"f{number}": number for number in range(16)}}]
        + [{"text": "x" * 256}]
        + [{"text": str(number)} for number in range(14)],
    )


def said_otherwise() -> Iterator[Vector]:
    """Read as the vector that they encode to."""
    text = next(written()).meaning or {}

    def vector(name: str, about: str, data: bytes, encodes_to: str, meaning: Any) -> Vector:
        return Vector(f"request-{name}", about, "request", data, meaning, f"request-{encodes_to}")

    unknown = {**text, "trace": {"a": [1, None, b"x"]}, "samples": [{"text": "red shoes", "weight": 0.5}]}
    keys: dict[Any, Any] = {7: "an integer key", b"bytes": 1, **text, None: [], True: {}}
    yield vector("unknown_keys", "keys that nobody knows are ignored", packed(unknown), "text", text)
    yield vector("odd_keys", "a key that is no string is unknown", packed(keys), "text", text)
    nulls = {
        **{"v": 1, "id": "r-7f3a", "pipeline": "relevance"},
        "samples": [{"id": None, "text": "red shoes", "fields": None, "token_ids": None}],
        **{"deadline_ms": None, "timeout_ms": None, "priority": None, "options": None},
    }
    yield vector("nulls", "null for an optional key is the key left out", packed(nulls), "text", text)
    defaults = {**text, "priority": 0, "options": {}}
    yield vector("defaults", "defaults written out", packed(defaults), "text", text)
    backwards = dict(reversed(list(text.items())))
    yield vector("order", "keys in another order", packed(backwards), "text", text)
    floats = {**text, "v": 1.0, "timeout_ms": 20.0, "priority": 0.0}
    yield vector(
        "whole_floats",
        "whole numbers as floats, for languages without integers",
        packed(floats),
        "timeout",
        {**text, "timeout_ms": 20},
    )
    yield vector("long_forms", "every length and number in its longest form", long_forms(text), "text", text)


def long_forms(value: object) -> bytes:
    """msgpack with 32-bit lengths and 64-bit integers throughout; as valid, and larger."""
    if isinstance(value, dict):
        parts = [long_forms(part) for entry in value.items() for part in entry]
        return b"\xdf" + struct.pack(">I", len(value)) + b"".join(parts)
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(long_forms, value))
    if isinstance(value, str):
        encoded = value.encode()
        return b"\xdb" + struct.pack(">I", len(encoded)) + encoded
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    return bytes(msgpack.packb(value))
