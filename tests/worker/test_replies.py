"""Replies and dead letters as they are published."""

from __future__ import annotations

import time
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition

from engine.answers import Prepared
from engine.graph import Model
from schemas.codec import decode_reply
from schemas.deadletter import parse_origin
from schemas.messages import ErrorCode, ErrorInfo, Outcome, Request, Sample
from worker.offsets import Place
from worker.records import Route, Verdict, Work
from worker.replies import ReplyWriter

ECHO = (("kafka_correlationId", b"\x00\xff"), ("traceparent", b"00-1-2-01"))
WRITER = ReplyWriter("worker-1", "group", Model("smollm2", "abc"))


def work(value: bytes | None = b"value", key: bytes | None = b"key", **fields: Any) -> Work:
    headers = (("kafka_correlationId", b"\x00\xff"), ("x", None), ("x", b"2"), ("kafka_dlt-old", b"?"))
    record = ConsumerRecord("requests", 2, 7, 1_700_000_000_000, 0, key, value, None, -1, -1, headers)
    place = Place(TopicPartition("requests", 2), 7, epoch=1, attempt=2)
    return Work(place, record, 0, 0, time.perf_counter(), route=Route("replies", 1, ECHO), **fields)


def answered(rows: tuple[dict[str, object], ...]) -> tuple[Work, Verdict]:
    samples = (Sample(text="a", id="first"), Sample(text="b"))
    request = Request(id="r", pipeline="p", samples=samples)
    prepared = Prepared({}, num_tokens=11, num_samples=2)
    return work(request_id="r", request=request, prepared=prepared), Verdict(Outcome.OK, rows=rows)


def test_an_answer() -> None:
    reply, verdict = WRITER.reply(*answered(({"score": 0.5}, {"score": 1.0})))
    assert (reply.topic, reply.partition, reply.key, reply.headers) == ("replies", 1, b"r", ECHO)
    message = decode_reply(reply.value or b"")
    assert message.results == ({"score": 0.5, "id": "first"}, {"score": 1.0, "id": 1})
    assert (message.id, message.outcome, message.attempt, message.worker) == ("r", Outcome.OK, 2, "worker-1")
    assert (message.usage.samples, message.usage.tokens) == (2, 11)
    assert message.model is not None
    assert (message.model.name, message.model.digest) == ("smollm2", "abc")
    assert message.timing.total_ms >= message.timing.queue_ms >= 0
    assert verdict.outcome is Outcome.OK


def test_rows_that_cannot_be_written_make_it_a_failure() -> None:
    reply, verdict = WRITER.reply(*answered(({"score": float("nan")}, {"score": 1.0})))
    message = decode_reply(reply.value or b"")
    assert message.outcome is verdict.outcome is Outcome.FAILED
    assert message.error is not None
    assert (message.error.code, message.error.field) == (ErrorCode.MODEL_OUTPUT, "results[0].score")
    assert message.results == ()


def test_a_refusal_of_what_could_not_be_read() -> None:
    error = ErrorInfo(code=ErrorCode.MALFORMED, message="not msgpack", field=None)
    reply, _ = WRITER.reply(work(), Verdict(Outcome.INVALID, error))
    message = decode_reply(reply.value or b"")
    assert (message.id, message.error, message.model) == (None, error, None)
    assert reply.key == b"key"


def test_a_dead_letter_is_the_record_with_where_it_came_from() -> None:
    letter = WRITER.dead_letter(work(), "boundgen.MalformedRequest", "why")
    assert (letter.topic, letter.partition, letter.key, letter.value) == ("requests-dlt", 2, b"key", b"value")
    assert letter.headers[:3] == (("kafka_correlationId", b"\x00\xff"), ("x", None), ("x", b"2"))
    assert "kafka_dlt-old" not in dict(letter.headers)
    origin = parse_origin(letter.headers)
    assert origin is not None
    assert (origin.topic, origin.partition, origin.offset, origin.group) == ("requests", 2, 7, "group")
    assert (origin.exception_class, origin.message) == ("boundgen.MalformedRequest", "why")


def test_a_record_without_key_and_value_can_be_kept_too() -> None:
    assert WRITER.dead_letter(work(value=None, key=None), "c", "m").value == b""
    assert WRITER.dead_letter(work(value=None, key=b"k"), "c", "m").value is None
