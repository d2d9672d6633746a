"""The codec's bounds, its errors word for word, and what it tolerates."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import msgpack
import pytest

from schemas.codec import DecodeError, EncodeError, decode_reply, decode_request, encode_reply, encode_request
from schemas.messages import ErrorCode, ErrorInfo, Outcome, Reply, Request, Sample
from schemas.plain import Limits


def message(**changes: Any) -> dict[str, Any]:
    return {"v": 1, "id": "r-1", "pipeline": "relevance", "samples": [{"text": "shoes"}], **changes}


def error_of(data: Any, limits: Limits | None = None) -> DecodeError:
    packed = data if isinstance(data, bytes) else msgpack.packb(data)
    with pytest.raises(DecodeError) as caught:
        decode_request(packed, limits or Limits())
    return caught.value


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"v": True}, "v", "v: True is not a whole number"),
        ({"v": "1"}, "v", "v: '1' is not a whole number"),
        ({"v": 1.5}, "v", "v: 1.5 is not a whole number"),
        ({"samples": 5}, "samples", "samples: should be an array, got 5"),
        ({"samples": [5]}, "samples[0]", "samples[0]: should be a map, got 5"),
        ({"options": 5}, "options", "options: should be a map, got 5"),
        ({"id": 7}, "id", "id: should be a valid string, got 7"),
        ({"id": ""}, "id", "id: String should have at least 1 character, got ''"),
        ({"id": "x" * 129}, "id", "at most 128 characters"),
        ({"pipeline": None}, "pipeline", "should be a valid string, got None"),
        ({"pipeline": b"relevance"}, "pipeline", "should be a valid string, got b'relevance'"),
        ({"samples": []}, "samples", "samples: should have at least 1 item, got a list of 0"),
        ({"samples": {"text": "a"}}, "samples", "got a map of 1"),
        ({"samples": [{"text": "a"}, 5]}, "samples[1]", "got 5"),
        ({"samples": [{}]}, "samples[0]", "exactly one of text, fields and token_ids"),
        ({"samples": [{"text": "a", "token_ids": [1]}]}, "samples[0]", "exactly one of"),
        ({"samples": [{"text": 5}]}, "samples[0].text", "should be a valid string, got 5"),
        ({"samples": [{"id": 1.5, "text": "a"}]}, "samples[0].id", "got 1.5"),
        ({"samples": [{"fields": {"t": None}}]}, "samples[0].fields.t", "got None"),
        ({"samples": [{"fields": {"t": [1]}}]}, "samples[0].fields.t", "got a list of 1"),
        ({"samples": [{"fields": {"str": b"x"}}]}, "samples[0].fields.str", "got b'x'"),
        ({"samples": [{"fields": {str(n): 1 for n in range(300)}}]}, "samples[0].fields", "300 fields"),
        ({"samples": [{"token_ids": [1, -1]}]}, "samples[0].token_ids", "item 1 is -1, not a token id"),
        ({"samples": [{"token_ids": [2**31]}]}, "samples[0].token_ids", "item 0 is 2147483648"),
        ({"samples": [{"token_ids": [True]}]}, "samples[0].token_ids", "item 0 is True"),
        ({"samples": [{"token_ids": "12"}]}, "samples[0].token_ids", "a list of integers, got '12'"),
        ({"deadline_ms": "soon"}, "deadline_ms", "should be a valid integer, got 'soon'"),
        ({"deadline_ms": 1.5}, "deadline_ms", "got 1.5"),
        ({"timeout_ms": 1e300}, "timeout_ms", "got an integer of 997 bits"),
        ({"priority": 10}, "priority", "got 10"),
        ({"priority": -1}, "priority", "got -1"),
        ({"options": [1]}, "options", "got a list of 1"),
        ({"options": {"a": math.nan}}, "options.a", "nan is not a finite number"),
    ],
)
def test_an_invalid_field_is_named_and_quoted(changes, field, text):
    error = error_of(message(**changes))
    assert (error.code, error.field) == (ErrorCode.INVALID_FIELD, field)
    assert text in str(error)
    assert error.code.outcome is Outcome.INVALID
    assert error.request_id == (None if "id" in changes else "r-1")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes end before the message does"),
        (b"\xc1", "not msgpack"),
        ([1, 2], "not a map but a list of 2"),
        ("x" * 1000, "not a map but 'xxx"),
        (None, "not a map but None"),
        (
            b'{"v": 1, "id": "a"}',
            "18 bytes after the end of the message: it begins as JSON does",
        ),  # JSON: the first byte alone is a whole number
        (b"\x91" * 5000, "StackError"),
        (message(x=msgpack.ExtType(5, b"abc")), "x: a value of type ExtType is not allowed"),
        (message(x=[msgpack.Timestamp(5)]), "x[0]: a value of type Timestamp is not allowed"),
        (b"\x82\xa2id\xa1a\xa2id\xa1b", "id: the key occurs twice in one map"),
    ],
)
def test_what_is_no_message_is_malformed(data, text):
    error = error_of(data)
    assert error.code is ErrorCode.MALFORMED
    assert text in str(error)
    assert len(str(error)) < 300


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "limits", "code", "field"),
    [
        (message(text="x" * 200), Limits(max_bytes=200), ErrorCode.TOO_LARGE, None),
        (message(samples=[{"text": "a"}] * 3), Limits(max_samples=2), ErrorCode.TOO_LARGE, "samples"),
        (
            message(samples=[{"text": "é" * 60}]),
            Limits(max_text_bytes=100),
            ErrorCode.TOO_LARGE,
            "samples[0].text",
        ),
        (message(x=list(range(50))), Limits(max_items=40), ErrorCode.MALFORMED, "x"),
        (message(x=nested(8)), Limits(), ErrorCode.MALFORMED, "x" + "[0]" * 7),
        (message(x=nested(1000)), Limits(), ErrorCode.MALFORMED, "x" + "[0]" * 7),
    ],
)
def test_bounds(data, limits, code, field):
    error = error_of(data, limits)
    assert (error.code, error.field, error.request_id) == (code, field, "r-1")


def test_bounds_are_inclusive():
    data = msgpack.packb(message(samples=[{"text": "é" * 50}] * 2, x=nested(7)))
    limits = Limits(max_bytes=len(data), max_samples=2, max_text_bytes=100, max_items=20)
    assert len(decode_request(data, limits).samples) == 2


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\x00\x0f\xff\xff" * 1000,  # lists of a million within each other
        b"\xdc\x0b\xb8" * 1000,  # of as many as there are bytes: msgpack's own limit
        b"\x81\xa1x" + b"\xdc\x0b\xb8" * 1000,
        b"\xdf\x00\x0f\xff\xff\xc0" * 1000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x82\xa2id\xa1a" + b"\xa1x" + b"\xdd\x00\x0f\xff\xff" * 900,
        b"\x81" + b"\xdd\x00\x0f\xff\xff" * 900,  # as a key
        b"\x81\xa2id" + b"\xdd\x00\x0f\xff\xff" * 900,
    ],
)
def test_declared_lengths_allocate_nothing(bomb):
    tracemalloc.start()
    try:
        assert error_of(bomb).code is ErrorCode.MALFORMED
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_whole_floats_are_integers_for_languages_that_have_no_others():
    request = decode_request(msgpack.packb(message(v=1.0, deadline_ms=1.7e12, timeout_ms=20.0, priority=3.0)))
    assert (request.v, request.deadline_ms, request.timeout_ms, request.priority) == (
        1,
        1_700_000_000_000,
        20,
        3,
    )
    assert isinstance(request.deadline_ms, int)


@pytest.mark.parametrize("ms", [-1, 0, 2**63, 2**64 - 1])
def test_odd_deadlines_reach_the_worker_that_clamps_them(ms):
    assert decode_request(msgpack.packb(message(deadline_ms=ms))).deadline_ms == ms


def test_the_id_is_found_before_the_damage_only():
    whole = msgpack.packb({"pipeline": "p", "id": "found", "samples": [{"text": "a"}], "v": 1})
    assert error_of(whole[:-3]).request_id == "found"
    assert error_of(whole[:10]).request_id is None
    assert error_of(msgpack.packb({"x": list(range(9)), "id": "found"}) + b"\xc1").request_id == "found"


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, math.nan, -math.inf, 2**64, {1: "a"}, [{"a": {None: 1}}], nested(9)]
)
def test_rows_that_are_not_plain_are_the_senders_error(value):
    with pytest.raises(EncodeError, match=r"results\[1\]\.x"):
        encode_reply(Reply(id="a", outcome=Outcome.OK, results=({"id": 0}, {"id": 1, "x": value})))


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"id": "a\udc80"}, "id"),
        ({"samples": (Sample(text="a"), Sample(fields={"title": "\ud800"}))}, r"samples\[1\]\.fields\.title"),
        ({"options": {"deep": [{"\udfff": 1}]}}, r"options\.deep\[0\]"),
    ],
)
def test_lone_surrogates_are_the_senders_error(part, field):
    request = Request(id="a", pipeline="p", samples=(Sample(text="x"),)).model_copy(update=part)
    with pytest.raises(EncodeError, match=f"{field}.*: not Unicode text"):
        encode_request(request)


def test_vectors_travel_as_lists_and_as_bytes():
    rows = ({"id": 0, "embedding": [0.5, 1, -2.25]}, {"id": 1, "embedding": b"\x00\x00\x00\x3f"})
    assert decode_reply(encode_reply(Reply(id="a", outcome=Outcome.OK, results=rows))).results == rows


def test_defaults_take_no_bytes():
    packed = encode_request(Request(id="a", pipeline="p", samples=(Sample(text="x"),)))
    assert msgpack.unpackb(packed) == {"v": 1, "id": "a", "pipeline": "p", "samples": [{"text": "x"}]}


def test_a_reply_of_a_newer_worker_may_have_an_error_code_we_do_not_know():
    reply = Reply(id=None, outcome=Outcome.REJECTED, error=ErrorInfo(code="too_hot", message="later"))
    assert decode_reply(encode_reply(reply)).error == reply.error
    assert reply.error is not None
    assert not isinstance(reply.error.code, ErrorCode)
    with pytest.raises(DecodeError, match="outcome"):
        decode_reply(msgpack.packb({"v": 1, "id": "a", "outcome": "sideways"}))


def test_every_error_code_has_its_outcome():
    by_outcome: dict[Outcome, set[str]] = {}
    for code in ErrorCode:
        by_outcome.setdefault(code.outcome, set()).add(code.value)
    assert Outcome.OK not in by_outcome
    assert by_outcome[Outcome.REJECTED] == {"too_large", "overloaded", "shutting_down"}
    assert by_outcome[Outcome.EXPIRED] == {"deadline_exceeded"}
    assert by_outcome[Outcome.CANCELLED] == {"cancelled"}
    assert by_outcome[Outcome.FAILED] == {"internal", "model_output"}


def test_rows_are_named_by_the_samples_id_or_place():
    samples = (Sample(text="a"), Sample(id="sku-9", text="b"), Sample(id=0, text="c"))
    assert Request(id="a", pipeline="p", samples=samples).row_ids() == (0, "sku-9", 0)
