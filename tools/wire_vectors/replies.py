"""Replies of every outcome, as a worker writes them and as another version might."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.wire_vectors.vector import Vector, packed

NO_USAGE = {"samples": 0, "tokens": 0}
NO_TIME = {"queue_ms": 0.0, "tokenize_ms": 0.0, "gpu_ms": 0.0, "total_ms": 0.0}
TIMING = {"queue_ms": 0.5, "tokenize_ms": 0.25, "gpu_ms": 4.0, "total_ms": 5.5}
MODEL = {"name": "smollm2", "digest": "sha256:9f2c"}
ERRORS: dict[str, tuple[tuple[str, str, str | None], ...]] = {
    "expired": (("deadline_exceeded", "12.5 ms after its deadline", None),),
    "cancelled": (("cancelled", "cancelled in Redis", None),),
    "rejected": (
        ("too_large", "40 samples, more than 32", "samples"),
        ("overloaded", "80 ms of work ahead, 20 ms left", None),
        ("shutting_down", "this worker ends", None),
    ),
    "invalid": (
        ("malformed", "truncated: 7 bytes end before the message does", None),
        ("unsupported_version", "version 9, this side reads 1 to 1", "v"),
        ("invalid_field", "missing", "samples[3].fields.title"),
        ("unknown_pipeline", "'relevanz': this worker has 'relevance'", "pipeline"),
        ("reply_topic_not_allowed", "'elsewhere' is not allowed", None),
    ),
    "failed": (
        ("internal", "a node broke: ZeroDivisionError", None),
        ("model_output", "the model's output holds NaN", None),
    ),
}


def written() -> Iterator[Vector]:
    """As a worker writes them: every key but the optional ones."""
    yield reply(
        "ok",
        "scores of two samples, in request order; the second had no id and gets its index",
        outcome="ok",
        results=[{"id": "sku-1", "yes": 0.75, "no": 0.25}, {"id": 1, "yes": 0.125, "no": 0.875}],
        usage={"samples": 2, "tokens": 31},
        timing=TIMING,
        model=MODEL,
        worker="w-1",
    )
    yield reply(
        "ok_vectors",
        "an embedding as a list and as bytes (float32, little-endian: 1, -2), a top_k",
        outcome="ok",
        results=[
            {"id": 0, "embedding": [1.0, -2.0]},
            {"id": 1, "embedding": b"\x00\x00\x80\x3f\x00\x00\x00\xc0"},
            {"id": 2, "top_k": [{"token": 7, "text": " oui", "logprob": -0.5}]},
        ],
        usage={"samples": 3, "tokens": 12},
        timing=TIMING,
        model=MODEL,
    )
    yield reply("ok_again", "a record delivered before: attempt 3", outcome="ok", attempt=3, worker="w-1")
    beams = [
        {"token_ids": [9, 4, 7], "text": " red shoes", "score": -1.5, "item_ids": ["sku-1", "sku-7"]},
        {"token_ids": [9, 2], "text": " red", "score": -2.25, "item_ids": ["sku-3"]},
    ]
    yield reply(
        "ok_beams",
        "two sequences of a search, the first of them that of two items",
        outcome="ok",
        results=[{"id": "sku-1", "beams": beams, "item_version": "0123456789abcdef"}],
        usage={"samples": 1, "tokens": 12},
        timing=TIMING,
        model=MODEL,
    )
    for outcome, errors in ERRORS.items():
        for code, message, field in errors:
            error = {"code": code, "message": message, **({} if field is None else {"field": field})}
            about = f"{outcome}, because {code}"
            yield reply(f"{outcome}-{code}", about, outcome=outcome, error=error, worker="w-1")
    error = {"code": "malformed", "message": "not msgpack"}
    yield reply("no_id", "the request's id could not be read", id=None, outcome="invalid", error=error)


def said_otherwise() -> Iterator[Vector]:
    """What a reader has to take as well."""
    short = {"v": 1, "id": "r-7f3a", "outcome": "expired"}
    yield reply("shortest", "what a reader makes of the shortest reply", outcome="expired")
    meaning = complete(outcome="expired")
    about = "usage, timing, results and attempt left out"
    yield Vector("reply-left_out", about, "reply", packed(short), meaning, "reply-shortest")
    error = {"code": "quota_spent", "message": "a code of tomorrow"}
    yield reply("new_code", "codes may be added: go by the outcome", outcome="rejected", error=error)
    more = {**meaning, "cost": 0.5, "usage": {**NO_USAGE, "cached": 3}}
    yield Vector(
        "reply-unknown_keys", "unknown keys are ignored", "reply", packed(more), meaning, "reply-shortest"
    )


def reply(name: str, about: str, **message: Any) -> Vector:
    """A reply that is its own encoding."""
    meaning = complete(**message)
    return Vector(f"reply-{name}", about, "reply", packed(meaning), meaning)


def complete(**message: Any) -> dict[str, Any]:
    """All keys that a worker writes, in its order."""
    every = {
        **{"v": 1, "id": "r-7f3a", "outcome": None, "results": [], "error": None},
        **{"usage": NO_USAGE, "timing": NO_TIME, "model": None, "attempt": 1, "worker": None},
        **message,
    }
    return {key: value for key, value in every.items() if value is not None or key == "id"}
