"""Headers of both dialects, and whatever else a record may carry."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.headers import (
    MAX_CORRELATION_BYTES,
    Header,
    HeaderError,
    ReplyAddress,
    parse_headers,
    request_headers,
)

CORRELATION = bytes(range(16))  # as Spring makes them: not UTF-8
TRACE: list[Header] = [
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", b"a=1"),
]

known = st.sampled_from(
    [
        "kafka_correlationId",
        "kafka_replyTopic",
        "kafka_replyPartition",
        "correlation_id",
        "reply_to",
        "traceparent",
        "x",
    ]
)
odd_headers = st.lists(
    st.tuples(known | st.text(max_size=10), st.none() | st.binary(max_size=30)), max_size=12
)


def test_spring():
    headers = [*request_headers("boundgen.replies", CORRELATION, partition=3), *TRACE, ("other", b"1")]
    assert headers[2] == ("kafka_replyPartition", b"\x00\x00\x00\x03")
    assert parse_headers(headers) == ReplyAddress(
        "boundgen.replies", 3, CORRELATION, (("kafka_correlationId", CORRELATION), *TRACE)
    )


def test_faststream():
    headers = request_headers("boundgen.replies", b"abc", dialect="faststream")
    assert headers == [("correlation_id", b"abc"), ("reply_to", b"boundgen.replies")]
    assert parse_headers(headers) == ReplyAddress(
        "boundgen.replies", None, b"abc", (("correlation_id", b"abc"),)
    )
    with pytest.raises(ValueError, match="partition = 1"):
        request_headers("boundgen.replies", b"abc", partition=1, dialect="faststream")


def test_no_headers_ask_for_no_reply():
    assert parse_headers([]) == ReplyAddress()
    assert parse_headers([("reply_to", b""), ("kafka_replyTopic", None)]).topic is None


def test_both_dialects_at_once_are_both_echoed_and_springs_counts():
    address = parse_headers(
        [*request_headers("fast", b"f", dialect="faststream"), *request_headers("spring", b"s")]
    )
    assert (address.topic, address.correlation_id) == ("spring", b"s")
    assert address.echo == (("kafka_correlationId", b"s"), ("correlation_id", b"f"))


def test_nulls_are_absent_and_the_last_duplicate_counts():
    address = parse_headers(
        [("reply_to", b"first"), ("reply_to", b"second"), ("reply_to", None), ("correlation_id", None)]
    )
    assert address == ReplyAddress("second")


def test_a_reply_does_not_ask_for_a_reply():
    address = parse_headers([*request_headers("t", b"c", partition=1), ("reply_to", b"t")])
    assert {name for name, _ in address.echo} == {"kafka_correlationId"}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("kafka_replyPartition", b"\x00\x00\x01", "3 bytes, expected 4"),
        ("kafka_replyPartition", b"", "0 bytes, expected 4"),
        ("kafka_replyPartition", b"\xff\xff\xff\xff", "partition -1 is negative"),
        ("kafka_replyTopic", b"\xff\xfe", r"not a topic name"),
        ("reply_to", b"a topic", "not a topic name"),
        ("reply_to", b"x" * 250, "not a topic name"),
        ("kafka_replyTopic", b"..", "not a topic name"),
        ("correlation_id", b"x" * (MAX_CORRELATION_BYTES + 1), "longer than 1024 bytes"),
    ],
)
def test_a_reply_address_that_cannot_be_used_is_named_and_quoted(name, value, text):
    with pytest.raises(HeaderError, match=text) as caught:
        parse_headers([("kafka_correlationId", b"1"), (name, value)])
    assert (caught.value.field, caught.value.value) == (name, value)
    assert name in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_endless_trace_state_is_dropped():
    assert parse_headers([("tracestate", b"x" * 5000), TRACE[0]]).echo == (TRACE[0],)


@settings(deadline=None)
@given(odd_headers)
def test_any_headers_give_an_address_or_a_header_error(headers):
    try:
        address = parse_headers(headers)
    except HeaderError:
        return
    assert address.topic is None or address.topic.isascii()
    values = {name: value for name, value in headers if value is not None}
    assert all(values[name] == value for name, value in address.echo)


@settings(deadline=None)
@given(st.binary(max_size=64), st.none() | st.integers(0, 2**31 - 1))
def test_correlation_ids_are_opaque(correlation_id, partition):
    address = parse_headers(request_headers("replies", correlation_id, partition))
    assert (address.correlation_id, address.partition) == (correlation_id, partition)
