"""A record's way in: headers, bytes, fields, deadline, tokens; either it is ready to run or it has a verdict.

Runs on a preparing thread, never on the event loop: decoding and tokenizing cost milliseconds. Stateless but
for what it was given, all of it safe to read from several threads. Never raises: a node's own bug is the
request's verdict.
"""

from __future__ import annotations

import time

from engine.errors import InputError, NodeError
from engine.pipeline import Pipeline
from schemas.codec import DecodeError, decode_request
from schemas.headers import HeaderError, parse_headers
from schemas.messages import ErrorCode, Request
from schemas.plain import Limits
from worker.deadlines import Clock, DeadlinePolicy, message_deadline
from worker.records import Verdict, Work
from worker.routing import Router
from worker.verdicts import expiry, failure_code, refusal

LOG_APPEND_TIME = 1  # Kafka's timestamp type: the broker's clock wrote it
MALFORMED = "boundgen.MalformedRequest"  # in the dead letter's exception-fqcn
HEADERS_INVALID = "boundgen.InvalidHeaders"
EXHAUSTED = "boundgen.AttemptsExhausted"


class Admission:
    """Decides for one pipeline; fills in what it learns of the work as it goes, also when it refuses."""

    def __init__(
        self,
        pipeline: Pipeline,
        router: Router,
        limits: Limits,
        clock: Clock,
        policy: DeadlinePolicy,
        max_attempts: int = 0,
    ) -> None:
        self._pipeline = pipeline
        self._router = router
        self._limits = limits
        self._clock = clock
        self._policy = policy
        self._max_attempts = max_attempts

    def admit(self, work: Work) -> Verdict | None:
        """None: prepared, may be queued. Otherwise what became of it."""
        return (
            self._address(work)
            or self._count(work)
            or self._decode(work)
            or self._date(work)
            or self.prepare(work)
        )

    def _address(self, work: Work) -> Verdict | None:
        headers = tuple(work.record.headers)
        try:
            address = parse_headers(headers)
        except HeaderError as error:
            return refusal(ErrorCode.INVALID_FIELD, str(error), error.field, dead=HEADERS_INVALID)
        route = self._router.route(address, headers)
        if isinstance(route, Verdict):
            return route
        work.route = route
        return None

    def _count(self, work: Work) -> Verdict | None:
        """Before anything is done with what the record holds: it may be what ended its owners."""
        if not self._max_attempts or work.place.attempt <= self._max_attempts:
            return None
        message = f"{work.place.attempt - 1} workers ended while they had this record"
        return refusal(ErrorCode.INTERNAL, message, dead=EXHAUSTED)

    def _decode(self, work: Work) -> Verdict | None:
        if work.record.value is None:
            return refusal(ErrorCode.MALFORMED, "the record has no value", dead=MALFORMED)
        try:
            request = decode_request(work.record.value, self._limits)
        except DecodeError as error:
            work.request_id = error.request_id
            # Too large is an answer to a producer within reach; all else is for whoever runs the topic.
            answered = error.code is ErrorCode.TOO_LARGE and work.route and work.request_id
            return refusal(error.code, error.message, error.field, dead=None if answered else MALFORMED)
        work.request, work.request_id = request, request.id
        if request.pipeline != self._pipeline.name:
            message = f"{request.pipeline!r}: this topic's requests are for {self._pipeline.name!r}"
            return refusal(ErrorCode.UNKNOWN_PIPELINE, message, "pipeline")
        return None

    def _date(self, work: Work) -> Verdict | None:
        assert work.request is not None, "decoded before"
        work.deadline = message_deadline(
            deadline_ms=work.request.deadline_ms,
            timeout_ms=work.request.timeout_ms,
            record_timestamp_ms=work.record.timestamp,
            log_append_time=work.record.timestamp_type == LOG_APPEND_TIME,
            received_ms=work.received_ms,
            offset_ms=self._clock.offset_ms,
            policy=self._policy,
            not_before_ms=work.not_before_ms,
        )
        return expiry(work, self._clock.now_ms(), "at receipt")

    def prepare(self, work: Work) -> Verdict | None:
        """The last step alone, for a work that was over at receipt and that Redis has extended."""
        assert work.request is not None, "decoded before"
        started_s = time.perf_counter()
        try:
            work.prepared = self._pipeline.prepare(work.request.samples, options=work.request.options)
        except InputError as error:
            return refusal(failure_code(error.code), str(error), error.field)
        except NodeError as error:
            return refusal(failure_code(error.code), str(error))
        except Exception as error:  # noqa: BLE001 - the boundary to nodes that users write
            return refusal(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
        finally:
            work.tokenize_s = time.perf_counter() - started_s
        return self._check_capacity(work.request, work)

    def _check_capacity(self, request: Request, work: Work) -> Verdict | None:
        capacity = self._pipeline.capacity
        if work.num_tokens > capacity.tokens:
            message = f"{work.num_tokens} tokens, a batch holds {capacity.tokens}"
            return refusal(ErrorCode.TOO_LARGE, message, "samples")
        if work.num_samples > capacity.samples:
            message = f"{len(request.samples)} samples, a batch holds {capacity.samples}"
            return refusal(ErrorCode.TOO_LARGE, message, "samples")
        return None
