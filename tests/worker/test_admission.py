"""A record's way in, with a pipeline of real nodes: what is filled in, and what each refusal says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from aiokafka import ConsumerRecord, TopicPartition

from engine.errors import InputError
from engine.pipeline import ArtifactStore, Pipeline
from fixed_cost import numbers_pipeline
from schemas.codec import encode_request
from schemas.messages import ErrorCode, Outcome, Request, Sample
from schemas.plain import Limits
from worker.admission import Admission
from worker.deadlines import Clock, DeadlinePolicy
from worker.offsets import Place
from worker.records import Route, Work
from worker.routing import Router

Admit = Callable[..., tuple[Work, Any]]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    config = numbers_pipeline(requests=2, ran=str(tmp_path / "ran"))
    with Pipeline.open(config, ArtifactStore({})) as opened:
        yield opened


@pytest.fixture
def admit(pipeline: Pipeline) -> Admit:
    clock = Clock()
    router = Router(frozenset({"replies"}), {"replies": 2}.get)
    admission = Admission(pipeline, router, Limits(), clock, DeadlinePolicy(), max_attempts=5)

    def admit(
        value: bytes | None, headers: Any = (("kafka_replyTopic", b"replies"),), attempt: int = 1
    ) -> tuple[Work, Any]:
        now_ms = int(time.time() * 1000)
        record = ConsumerRecord("requests", 0, 5, now_ms, 0, None, value, None, -1, -1, tuple(headers))
        place = Place(TopicPartition("requests", 0), 5, epoch=1, attempt=attempt)
        work = Work(place, record, 0, clock.now_ms(), time.perf_counter())
        return work, admission.admit(work)

    return admit


def request(*texts: str, **fields: Any) -> bytes:
    samples = tuple(Sample(text=text) for text in texts or ("1",))
    return encode_request(
        Request(id="r", pipeline=fields.pop("pipeline", "numbers"), samples=samples, **fields)
    )


def test_a_good_request_is_ready_to_run(admit: Admit) -> None:
    work, verdict = admit(request("1", "2 hold", timeout_ms=5000, priority=3))
    assert verdict is None
    assert work.route == Route("replies", None, ())
    assert (work.request_id, work.priority, work.num_samples, work.num_tokens) == ("r", 3, 2, 3)
    assert work.expires_ms is not None
    assert 4000 < work.expires_ms - work.received_ms <= 5000


@pytest.mark.parametrize(
    ("value", "code", "field", "dead"),
    [
        (None, ErrorCode.MALFORMED, None, True),
        (b"", ErrorCode.MALFORMED, None, True),
        (msgpack.packb({"v": 1, "id": "r"}), ErrorCode.INVALID_FIELD, "pipeline", True),
        (request(pipeline="words"), ErrorCode.UNKNOWN_PIPELINE, "pipeline", False),
        (request(*"12345"), ErrorCode.TOO_LARGE, "samples", False),
        (request("one"), ErrorCode.INVALID_FIELD, "samples", False),
        (request(""), ErrorCode.INTERNAL, None, False),
        (request(timeout_ms=0), ErrorCode.DEADLINE_EXCEEDED, None, False),
        (request("x" * 300_000), ErrorCode.TOO_LARGE, "samples[0].text", False),
        (bytes(2 << 20), ErrorCode.TOO_LARGE, None, True),  # nobody to tell: no id can be read
    ],
)
def test_refusals(admit: Admit, value: bytes | None, code: ErrorCode, field: str | None, dead: bool) -> None:
    work, verdict = admit(value)
    assert verdict is not None
    assert verdict.error is not None
    assert (verdict.error.code, verdict.error.field) == (code, field), verdict.error
    assert verdict.outcome is code.outcome
    assert (verdict.dead is not None) is dead
    assert work.route is not None  # each of these can be answered


def test_nodes_see_the_requests_own_options(admit: Admit, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: object, options: Mapping[str, object]) -> None:
        if options.get("width") == 0:
            raise InputError("invalid", "options.width = 0: too few", "options.width")

    monkeypatch.setattr("engine.graph.Node.check_options", check)
    assert admit(request(options={"width": 1, "other": "x"}))[1] is None
    _, verdict = admit(request(options={"width": 0}))
    assert (verdict.outcome, verdict.error.code) == (Outcome.INVALID, ErrorCode.INVALID_FIELD)
    assert (verdict.error.field, verdict.error.message) == ("options.width", "options.width = 0: too few")


def test_without_an_address_even_a_large_record_is_kept(admit: Admit) -> None:
    work, verdict = admit(request("x" * 300_000), headers=())
    assert verdict.outcome is Outcome.REJECTED
    assert verdict.dead is not None
    assert work.route is None


def test_what_the_headers_forbid_is_not_even_decoded(admit: Admit) -> None:
    work, verdict = admit(request(), headers=(("kafka_replyTopic", b"elsewhere"),))
    assert verdict.error.code is ErrorCode.REPLY_TOPIC_NOT_ALLOWED
    assert work.request is None


def test_a_record_that_ended_its_owners_is_not_even_decoded(admit: Admit) -> None:
    work, verdict = admit(request(), attempt=5)
    assert verdict is None
    work, verdict = admit(request(), attempt=6)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.error.message == "5 workers ended while they had this record"
    assert verdict.dead == "boundgen.AttemptsExhausted"
    assert work.request is None
