"""Which reply addresses are followed."""

from __future__ import annotations

import pytest

from schemas.headers import Header, parse_headers
from schemas.messages import ErrorCode, Outcome
from worker.records import Route, Verdict
from worker.routing import Router

PARTITIONS = {"replies": 3, "unknown.yet": None}
ROUTER = Router(frozenset(PARTITIONS), PARTITIONS.get)


def route(*headers: Header) -> Route | Verdict | None:
    return ROUTER.route(parse_headers(headers), headers)


def test_no_address_is_no_route() -> None:
    assert route() is None
    assert route(("kafka_correlationId", b"c"), ("kafka_replyTopic", None)) is None


def test_an_allowed_address_with_what_it_takes_back() -> None:
    found = route(
        ("kafka_replyTopic", b"replies"), ("kafka_correlationId", b"\xff"), ("traceparent", b"00-1")
    )
    assert found == Route("replies", None, (("kafka_correlationId", b"\xff"), ("traceparent", b"00-1")))
    found = route(("kafka_replyTopic", b"replies"), ("kafka_replyPartition", b"\0\0\0\2"))
    assert found == Route("replies", 2, ())
    found = route(("kafka_replyTopic", b"unknown.yet"), ("kafka_replyPartition", b"\0\0\0\2"))
    assert found == Route("unknown.yet", 2, ())


@pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ([("kafka_replyTopic", b"__consumer_offsets")], "kafka_replyTopic", "'__consumer_offsets'"),
        ([("reply_to", b"other")], "reply_to", "'other'"),
        (
            [("kafka_replyTopic", b"replies"), ("kafka_replyPartition", b"\0\0\0\3")],
            "kafka_replyPartition",
            "3: replies has 3 partitions",
        ),
    ],
)
def test_others_are_dead_letters_without_a_reply(headers: list[Header], field: str, value: str) -> None:
    verdict = route(*headers)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.dead == "boundgen.ReplyAddressRefused"
    assert verdict.error is not None
    assert (verdict.error.code, verdict.error.field) == (ErrorCode.REPLY_TOPIC_NOT_ALLOWED, field)
    assert value in verdict.error.message
