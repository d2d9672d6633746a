"""Dead letters keep what came and grow no further, however often they come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.deadletter import Origin, dead_letter_headers, dead_letter_topic, next_attempt, parse_origin
from schemas.headers import Header

WHERE: dict[str, Any] = {
    "topic": "boundgen.relevance.requests",
    "partition": 2,
    "offset": 2**40,
    "timestamp_ms": 1_700_000_000_000,
    "group": "boundgen",
    "exception_class": "schemas.codec.DecodeError",
    "message": "v: missing",
}

headers_of_anyone = st.lists(
    st.tuples(
        st.text(max_size=20)
        | st.sampled_from(["kafka_dlt-original-topic", "kafka_dlt-attempts", "kafka_dlt-odd", "k"]),
        st.none() | st.binary(max_size=50),
    ),
    max_size=10,
)


def size(headers: list[Header]) -> int:
    return sum(len(name.encode("utf-8", "replace")) + len(value or b"") for name, value in headers)


def test_springs_names_and_encodings():
    headers = dict(dead_letter_headers([], **WHERE, attempts=1))
    assert headers == {
        "kafka_dlt-original-topic": b"boundgen.relevance.requests",
        "kafka_dlt-original-partition": b"\x00\x00\x00\x02",
        "kafka_dlt-original-offset": (2**40).to_bytes(8, "big"),
        "kafka_dlt-original-timestamp": (1_700_000_000_000).to_bytes(8, "big"),
        "kafka_dlt-original-consumer-group": b"boundgen",
        "kafka_dlt-exception-fqcn": b"schemas.codec.DecodeError",
        "kafka_dlt-exception-message": b"v: missing",
        "kafka_dlt-attempts": b"\x00\x00\x00\x01",
    }


def test_the_origin_reads_back():
    origin = parse_origin(dead_letter_headers([("k", b"v")], **WHERE, attempts=3))
    assert origin == Origin(
        topic=WHERE["topic"],
        partition=2,
        offset=2**40,
        timestamp_ms=1_700_000_000_000,
        group="boundgen",
        exception_class="schemas.codec.DecodeError",
        message="v: missing",
        attempts=3,
    )


def test_a_record_that_is_no_dead_letter_has_no_origin():
    assert parse_origin([("k", b"v"), ("reply_to", None)]) is None
    assert next_attempt([("k", b"v")]) == 1


@settings(deadline=None)
@given(headers_of_anyone, st.text(max_size=5000))
def test_dead_lettering_again_and_again_keeps_the_size(original, message):
    headers: list[Header] = original
    sizes = []
    for attempt in range(1, 6):
        headers = dead_letter_headers(
            headers, **{**WHERE, "message": message}, attempts=next_attempt(headers)
        )
        sizes.append(size(headers))
        names = [name for name, _ in headers]
        assert all(names.count(name) == 1 for name in names if name.startswith("kafka_dlt-"))
        if not any(name.startswith("kafka_dlt-") for name, _ in original):
            assert next_attempt(headers) == attempt + 1
    assert sizes == [sizes[0]] * 5
    assert size(headers) <= size(original) + 2500
    kept = [header for header in original if not header[0].startswith("kafka_dlt-")]
    assert headers[: len(kept)] == kept


@settings(deadline=None)
@given(headers_of_anyone)
def test_any_headers_can_be_read(headers):
    origin = parse_origin(headers)
    assert (origin is None) == (not any(name.startswith("kafka_dlt-") for name, _ in headers))
    assert next_attempt(headers) >= 1


@pytest.mark.parametrize("message", ["\ud800 broken", "é" * 5000, "", "💥" * 300])
def test_odd_messages_are_cut_at_a_character(message):
    value = dict(dead_letter_headers([], **{**WHERE, "message": message}))["kafka_dlt-exception-message"]
    assert value is not None
    assert len(value) <= 1024
    value.decode()


def test_numbers_out_of_range_do_not_stop_a_dead_letter():
    headers = dead_letter_headers([], **{**WHERE, "timestamp_ms": 2**70, "partition": -5}, attempts=2**40)
    origin = parse_origin(headers)
    assert origin is not None
    assert (origin.timestamp_ms, origin.partition, origin.attempts) == (2**63 - 1, -5, 2**31 - 1)
    assert next_attempt(headers) == 2**31
    dead_letter_headers(headers, **WHERE, attempts=next_attempt(headers))


def test_the_topic():
    assert dead_letter_topic("boundgen.intent.requests") == "boundgen.intent.requests-dlt"
    with pytest.raises(ValueError, match=r"topic = 'x+'"):
        dead_letter_topic("x" * 246)
