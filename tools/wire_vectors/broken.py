"""Messages that are refused: the code, the field it names and what can be read of the id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

from tools.wire_vectors.vector import Refusal, Vector, packed

GOOD: dict[str, Any] = {"v": 1, "id": "r-7f3a", "pipeline": "relevance", "samples": [{"text": "red shoes"}]}
ID = "r-7f3a"


def requests() -> Iterator[Vector]:
    """Every way that the contract names."""
    yield from bytes_that_are_no_message()
    yield from wrong_values()
    yield from too_large()
    unknown = {"v": 1, "id": ID, "outcome": "postponed"}
    yield vector(
        "reply_outcome",
        "an outcome that there is not",
        packed(unknown),
        "invalid_field",
        "outcome",
        kind="reply",
    )
    half = {"v": 1, "id": ID, "outcome": "invalid", "error": {"code": "malformed"}}
    yield vector(
        "reply_error",
        "an error without a message",
        packed(half),
        "invalid_field",
        "error.message",
        kind="reply",
    )


def bytes_that_are_no_message() -> Iterator[Vector]:
    """Malformed: not msgpack, or not one map of plain values."""
    good = packed(GOOD)
    yield vector("empty", "no bytes at all", b"", "malformed", None, None)
    yield vector("not_msgpack", "0xc1 is never used", b"\xc1\xff\x00", "malformed", None, None)
    yield vector("json", "JSON by mistake", b'{"v": 1}', "malformed", None, None)
    yield vector("list", "a list, not a map", packed([1, 2]), "malformed", None, None)
    yield vector("truncated", "the last byte is missing", good[:-1], "malformed", None)
    yield vector("trailing", "a byte after the map", good + b"\xc0", "malformed", None)
    twice = b"\x85" + good[1:] + packed("id") + packed("other")
    yield vector("duplicate_key", "one key twice", twice, "malformed", "id")
    bad = good.replace(b"red shoes", b"red \xff\xfeoes")
    yield vector("not_utf8", "a string that is not UTF-8", bad, "malformed", "samples[0].text")
    stamp = packed({**GOOD, "options": {"at": msgpack.Timestamp(0)}})
    yield vector("extension", "an extension type: a timestamp", stamp, "malformed", "options.at")
    nested: Any = "bottom"
    for _ in range(8):
        nested = [nested]
    deep = packed({**GOOD, "options": {"a": nested}})
    yield vector("too_deep", "10 levels, where 8 are allowed", deep, "malformed", "options.a" + "[0]" * 6)
    lies = b"\x82" + packed("id") + packed(ID) + packed("samples") + b"\xdd\xff\xff\xff\xff"
    yield vector("declared_length", "a list that says it has 4,294,967,295 items", lies, "malformed", None)


def wrong_values() -> Iterator[Vector]:
    """A message whose field is wrong."""

    def wrong(name: str, about: str, field: str, request_id: str | None = ID, **changes: Any) -> Vector:
        return vector(name, about, packed({**GOOD, **changes}), "invalid_field", field, request_id)

    def without(key: str) -> bytes:
        return packed({name: value for name, value in GOOD.items() if name != key})

    def sample(name: str, about: str, field: str, value: object) -> Vector:
        return wrong(name, about, f"samples[0]{field}", samples=[value])

    yield vector("newer_version", "a newer version", packed({**GOOD, "v": 2}), "unsupported_version", "v")
    yield vector(
        "version_0", "a version before the first", packed({**GOOD, "v": 0}), "unsupported_version", "v"
    )
    for key in ("v", "id", "pipeline", "samples"):
        request_id = None if key == "id" else ID
        yield vector(f"no_{key}", f"{key} is missing", without(key), "invalid_field", key, request_id)
    yield wrong("version_text", "v is a string", "v", v="1")
    yield wrong("id_number", "the id is a number", "id", None, id=7)
    yield wrong("id_empty", "the id is empty", "id", None, id="")
    yield wrong("id_long", "an id of 129 characters", "id", None, id="x" * 129)
    yield wrong("samples_empty", "no sample", "samples", samples=[])
    yield wrong("priority", "a priority of 10", "priority", priority=10)
    yield wrong("timeout_fraction", "half a millisecond", "timeout_ms", timeout_ms=0.5)
    yield wrong("deadline_text", "a deadline as text", "deadline_ms", deadline_ms="2025-06-01")
    yield wrong("nan", "NaN, in options too", "options.a", options={"a": float("nan")})
    yield wrong("infinity", "an infinity", "options.a[1]", options={"a": [0.0, float("-inf")]})
    yield sample("two_contents", "text and token_ids", "", {"text": "a", "token_ids": [1]})
    yield sample("no_content", "a sample with an id alone", "", {"id": "sku-1"})
    yield sample("text_bytes", "text as msgpack's bytes", ".text", {"text": b"red shoes"})
    yield sample("field_list", "a field that is a list", ".fields.title", {"fields": {"title": ["a"]}})
    yield sample("field_null", "a field that is null", ".fields.title", {"fields": {"title": None}})
    yield sample("fields_many", "257 fields", ".fields", {"fields": {f"f{n}": 0 for n in range(257)}})
    yield sample("token_negative", "a negative token id", ".token_ids", {"token_ids": [1, -1]})
    yield sample("token_large", "a token id of 2^31", ".token_ids", {"token_ids": [2**31]})
    yield sample("sample_id", "a sample's id that is true", ".id", {"id": True, "text": "a"})


def too_large() -> Iterator[Vector]:
    """Over limits, with limits that keep the vectors small."""
    good = packed(GOOD)
    limits = {"max_bytes": len(good) - 1}
    yield vector("bytes", "one byte over the limit", good, "too_large", None, limits=limits)
    three = packed({**GOOD, "samples": [{"text": "a"}] * 3})
    yield vector(
        "samples", "one sample over the limit", three, "too_large", "samples", limits={"max_samples": 2}
    )
    long = packed({**GOOD, "samples": [{"text": "é" * 33}]})
    yield vector(
        "long_text",
        "a text of 66 bytes, over the limit of 64",
        long,
        "too_large",
        "samples[0].text",
        limits={"max_text_bytes": 64},
    )
    items = packed({**GOOD, "options": {"a": list(range(20))}})
    yield vector(
        "items", "more items in all than allowed", items, "malformed", "options.a", limits={"max_items": 20}
    )


def vector(
    name: str,
    about: str,
    data: bytes,
    code: str,
    field: str | None,
    request_id: str | None = ID,
    **more: Any,
) -> Vector:
    """One that is refused."""
    kind = more.pop("kind", "request")
    return Vector(f"broken-{name}", about, kind, data, refusal=Refusal(code, field, request_id), **more)
