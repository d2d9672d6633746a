"""What must hold for every message, every byte string and every kind of damage."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from schemas.codec import DecodeError, decode_reply, decode_request, encode_reply, encode_request
from schemas.messages import (
    VERSION,
    ErrorCode,
    ErrorInfo,
    ModelInfo,
    Outcome,
    Reply,
    Request,
    Sample,
    Timing,
    Usage,
)

# No deadline: a shared machine stalls at will.
many = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts, st.binary(max_size=20))
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from(["v", "id", "pipeline", "samples", "outcome", "results", "options"])
fields = st.dictionaries(texts, st.one_of(texts, integers, floats, st.booleans()), max_size=4)
row_ids = st.one_of(st.none(), names, integers)
samples = st.one_of(
    st.builds(Sample, id=row_ids, text=texts),
    st.builds(Sample, id=row_ids, fields=fields),
    st.builds(Sample, id=row_ids, token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple)),
)
requests = st.builds(
    Request,
    id=names,
    pipeline=names,
    samples=st.lists(samples, min_size=1, max_size=5).map(tuple),
    deadline_ms=st.none() | integers,
    timeout_ms=st.none() | integers,
    priority=st.integers(0, 9),
    options=st.dictionaries(texts, scalars | st.lists(scalars, max_size=3), max_size=3),
)
durations = st.floats(0, 1e9)
rows = st.dictionaries(
    texts, scalars | st.lists(floats, max_size=5) | st.dictionaries(texts, floats, max_size=3)
)
replies = st.builds(
    Reply,
    id=st.none() | names,
    outcome=st.sampled_from(Outcome),
    results=st.lists(rows, max_size=4).map(tuple),
    error=st.none()
    | st.builds(ErrorInfo, code=st.sampled_from(ErrorCode) | texts, message=texts, field=st.none() | texts),
    usage=st.builds(Usage, samples=st.integers(0, 2**62), tokens=st.integers(0, 2**62)),
    timing=st.builds(Timing, queue_ms=durations, tokenize_ms=durations, gpu_ms=durations, total_ms=durations),
    model=st.none() | st.builds(ModelInfo, name=texts, digest=texts),
    attempt=st.integers(1, 2**40),
    worker=st.none() | texts,
)


def as_map(request: Request) -> dict[str, Any]:
    message: dict[str, Any] = msgpack.unpackb(encode_request(request))
    return message


def error_of(data: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode_request(data)
    assert len(str(caught.value)) < 1000  # quotations are bounded
    return caught.value


@many
@given(requests)
def test_request_survives_the_wire(request_):
    assert decode_request(encode_request(request_)) == request_


@many
@given(replies)
def test_reply_survives_the_wire(reply):
    assert decode_reply(encode_reply(reply)) == reply


@many
@given(requests, st.dictionaries(names, plain, max_size=3), st.dictionaries(names, plain, max_size=3))
def test_unknown_keys_are_ignored(request_, extra, extra_in_sample):
    message = as_map(request_)
    message = {**{f"x-{key}": value for key, value in extra.items()}, **message}
    for sample in message["samples"]:
        sample.update({f"x-{key}": value for key, value in extra_in_sample.items()})
    assert decode_request(msgpack.packb(message)) == request_


@many
@given(replies, st.dictionaries(names, plain, max_size=3))
def test_unknown_keys_of_a_reply_are_ignored(reply, extra):
    message = msgpack.unpackb(encode_reply(reply))
    for place in (message, message["usage"], message["timing"]):
        place.update({f"x-{key}": value for key, value in extra.items()})
    assert decode_reply(msgpack.packb(message)) == reply


@many
@given(
    requests,
    st.dictionaries(integers | st.binary(max_size=4) | st.none() | st.booleans(), scalars, max_size=4),
)
def test_keys_that_are_no_strings_are_unknown_keys(request_, extra):
    message = as_map(request_)
    for sample in message["samples"]:
        sample.update(extra)
        sample.get("fields", {}).update(extra)
    assert decode_request(msgpack.packb({**extra, **message})) == request_


@many
@given(requests)
def test_null_is_the_same_as_absent(request_):
    message = {"deadline_ms": None, "timeout_ms": None, "priority": None, "options": None, **as_map(request_)}
    for sample in message["samples"]:
        sample.update({key: sample.get(key) for key in ("id", "text", "fields", "token_ids")})
    assert decode_request(msgpack.packb(message)) == request_


@many
@given(requests, st.sampled_from(["v", "id", "pipeline", "samples"]), st.booleans())
def test_required_keys_may_be_neither_null_nor_absent(request_, key, absent):
    message = as_map(request_)
    if absent:
        del message[key]
    else:
        message[key] = None
    error = error_of(msgpack.packb(message))
    assert (error.code, error.field) == (ErrorCode.INVALID_FIELD, key)
    assert error.request_id == (None if key == "id" else request_.id)


@many
@given(requests, st.integers(VERSION + 1, 2**63))
def test_a_newer_version_is_refused_and_the_request_named(request_, version):
    error = error_of(msgpack.packb({**as_map(request_), "v": version, "id": request_.id}))
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED_VERSION, "v")
    assert error.request_id == request_.id
    assert str(version) in str(error)


@many
@given(requests, st.data())
def test_truncated_bytes(request_, data):
    whole = encode_request(request_)
    cut = data.draw(st.integers(0, len(whole) - 1))
    error = error_of(whole[:cut])
    assert error.code is ErrorCode.MALFORMED
    assert error.request_id in (None, request_.id)


@many
@given(requests, st.binary(min_size=1, max_size=20))
def test_trailing_bytes(request_, more):
    error = error_of(encode_request(request_) + more)
    assert (error.code, error.request_id) == (ErrorCode.MALFORMED, request_.id)


@many
@given(requests, st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
def test_numbers_that_are_none_are_refused_with_their_place(request_, number, unknown):
    message = as_map(request_)
    if unknown:
        message["x-new"] = {"deep": [1, number]}
    else:
        message["samples"][-1] = {"fields": {"price": number}}
    error = error_of(msgpack.packb(message))
    assert error.code is ErrorCode.INVALID_FIELD
    assert error.field == (
        "x-new.deep[1]" if unknown else f"samples[{len(request_.samples) - 1}].fields.price"
    )


@many
@given(requests, st.sampled_from(["\ud800", "\udfff", "a\udc80b"]))
def test_lone_surrogates_are_refused_with_their_place(request_, broken):
    message = as_map(request_)
    message["samples"][0] = {"text": broken}
    error = error_of(msgpack.packb(message, unicode_errors="surrogatepass"))
    assert (error.code, error.field) == (ErrorCode.MALFORMED, "samples[0].text")
    assert error.request_id == request_.id


@many
@given(requests, st.sampled_from([b"\xff", b"\xc3\x28", b"\xe2\x82", b"\xf0\x28\x8c\x28"]))
def test_invalid_utf8_is_refused_with_its_place(request_, broken):
    message = as_map(request_)
    message["samples"].append({"fields": {"title": "PLACE"}})
    packed = msgpack.packb(message)
    assume(packed.count(b"\xa5PLACE") == 1)
    error = error_of(packed.replace(b"\xa5PLACE", bytes([0xA0 + len(broken)]) + broken))
    assert (error.code, error.field) == (
        ErrorCode.MALFORMED,
        f"samples[{len(request_.samples)}].fields.title",
    )
    assert error.request_id == request_.id


@many
@given(requests, st.data())
def test_damaged_bytes_decode_or_raise_only_decode_error(request_, data):
    damaged = bytearray(encode_request(request_))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(DecodeError):
            decode(bytes(damaged))


@many
@given(st.binary(max_size=200) | plain.map(msgpack.packb))
def test_random_bytes_and_values_raise_only_decode_error(data):
    for decode in (decode_request, decode_reply):
        with pytest.raises(DecodeError):
            decode(data)


@many
@given(st.dictionaries(keys, plain))
def test_right_keys_with_any_values_raise_only_decode_error(message):
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(DecodeError):
            decode(msgpack.packb({**message, "v": 1}))
