"""What goes out: replies and dead letters as bytes with headers. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.graph import Model
from schemas.codec import EncodeError, encode_reply
from schemas.deadletter import dead_letter_headers, dead_letter_topic, next_attempt
from schemas.headers import Header
from schemas.messages import VERSION, ErrorCode, ModelInfo, Reply, Timing, Usage
from worker.records import Verdict, Work
from worker.verdicts import refusal


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to publish. partition None: the producer chooses by key."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class ReplyWriter:
    """Writes the replies and dead letters of one pipeline."""

    def __init__(self, worker: str, group: str, model: Model | None) -> None:
        self._worker = worker
        self._group = group
        self._model = None if model is None else ModelInfo(name=model.name, digest=model.digest)

    def reply(self, work: Work, verdict: Verdict) -> tuple[Outgoing, Verdict]:
        """The reply and the verdict it tells: rows that cannot be encoded make it a failure."""
        assert work.route is not None, "only a request with an address is answered"
        try:
            value = encode_reply(self._message(work, verdict))
        except EncodeError as error:
            verdict = refusal(ErrorCode.MODEL_OUTPUT, f"a result cannot be encoded: {error}", error.field)
            value = encode_reply(self._message(work, verdict))
        key = work.request_id.encode() if work.request_id is not None else work.record.key
        route = work.route
        return Outgoing(route.topic, route.partition, key, value, route.echo), verdict

    def dead_letter(self, work: Work, exception_class: str, message: str) -> Outgoing:
        """The record as it came, with where from and why in Spring's headers."""
        record = work.record
        headers = dead_letter_headers(
            tuple(record.headers),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            group=self._group,
            exception_class=exception_class,
            message=message,
            attempts=next_attempt(tuple(record.headers)),
        )
        # A record may lack both key and value, which the producer refuses: an empty value stands for none.
        value = b"" if record.value is None and record.key is None else record.value
        topic = dead_letter_topic(record.topic)
        return Outgoing(topic, record.partition, record.key, value, tuple(headers))

    def _message(self, work: Work, verdict: Verdict) -> Reply:
        request = work.request
        ids = request.row_ids() if request is not None and verdict.rows else ()
        return Reply(
            v=request.v if request is not None else VERSION,
            id=work.request_id,
            outcome=verdict.outcome,
            results=tuple({**row, "id": row_id} for row_id, row in zip(ids, verdict.rows, strict=True)),
            error=verdict.error,
            usage=Usage(samples=work.num_samples, tokens=work.num_tokens),
            timing=_timing(work),
            model=self._model if verdict.rows else None,
            attempt=work.place.attempt,
            worker=self._worker,
        )


def _timing(work: Work) -> Timing:
    now_s = time.perf_counter()
    waited_s = (now_s if work.launched_s is None else work.launched_s) - work.received_s - work.tokenize_s
    return Timing(
        queue_ms=max(0.0, waited_s) * 1000,
        tokenize_ms=work.tokenize_s * 1000,
        gpu_ms=work.gpu_ms,
        total_ms=(now_s - work.received_s) * 1000,
    )
