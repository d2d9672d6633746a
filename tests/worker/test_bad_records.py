"""Whatever a record holds, it gets one outcome, nobody else suffers, and the worker goes on serving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.deadletter import Origin, parse_origin
from schemas.headers import request_headers
from schemas.messages import ErrorCode, Outcome
from tools.worker_process import WorkerProcess
from worker_service import MakeSite, Mouth, Site

Headers = list[tuple[str, bytes | None]]


def packed(**fields: Any) -> bytes:
    """A request as a producer in another language would write it."""
    request = {"v": 1, "id": "id", "pipeline": "numbers", "samples": [{"text": "1"}], **fields}
    encoded: bytes = msgpack.packb(request)
    return encoded


# what is sent, the outcome and code of its reply, the field it names
ANSWERED: dict[str, tuple[bytes | None, Outcome, ErrorCode, str | None]] = {
    "tombstone": (None, Outcome.INVALID, ErrorCode.MALFORMED, None),
    "empty": (b"", Outcome.INVALID, ErrorCode.MALFORMED, None),
    "no msgpack": (b"\xc1\xff\x00", Outcome.INVALID, ErrorCode.MALFORMED, None),
    "no map": (msgpack.packb([1, 2]), Outcome.INVALID, ErrorCode.MALFORMED, None),
    "truncated": (packed()[:-3], Outcome.INVALID, ErrorCode.MALFORMED, None),
    "newer version": (packed(v=9), Outcome.INVALID, ErrorCode.UNSUPPORTED_VERSION, "v"),
    "no samples": (packed(samples=[]), Outcome.INVALID, ErrorCode.INVALID_FIELD, "samples"),
    "two contents": (
        packed(samples=[{"text": "1", "token_ids": [1]}]),
        Outcome.INVALID,
        ErrorCode.INVALID_FIELD,
        "samples[0]",
    ),
    "other pipeline": (packed(pipeline="words"), Outcome.INVALID, ErrorCode.UNKNOWN_PIPELINE, "pipeline"),
    "node refuses": (
        packed(samples=[{"text": "seven"}]),
        Outcome.INVALID,
        ErrorCode.INVALID_FIELD,
        "samples",
    ),
    "node breaks": (packed(samples=[{"text": ""}]), Outcome.FAILED, ErrorCode.INTERNAL, None),
    "too many samples": (
        packed(samples=[{"text": "1"}] * 5),
        Outcome.REJECTED,
        ErrorCode.TOO_LARGE,
        "samples",
    ),
    "too large a record": (
        packed(samples=[{"text": "1"}], padding="x" * 3000),
        Outcome.REJECTED,
        ErrorCode.TOO_LARGE,
        None,
    ),
    "deadline long past": (
        packed(deadline_ms=1_500_000_000_000),
        Outcome.EXPIRED,
        ErrorCode.DEADLINE_EXCEEDED,
        None,
    ),
    "no time at all": (packed(timeout_ms=-5), Outcome.EXPIRED, ErrorCode.DEADLINE_EXCEEDED, None),
}  # fmt: skip
DEAD = ("tombstone", "empty", "no msgpack", "no map", "truncated")
DEAD += ("newer version", "no samples", "two contents")


def silent(site: Site) -> dict[str, tuple[bytes, Headers, str | None]]:
    """Records without a reply: value, headers, and what the dead letter's message says (None: no letter)."""
    good = packed(id="silent")
    elsewhere = request_headers("somewhere.else", b"c")
    return {
        "no address": (good, [], None),
        "empty address": (good, [("reply_to", b"")], None),
        "broken and no address": (b"\xc1", [("kafka_correlationId", b"c")], "not msgpack"),
        "topic not allowed": (good, elsewhere, "header kafka_replyTopic = 'somewhere.else'"),
        "no topic name": (good, [("reply_to", b"a b")], "header reply_to = "),
        "partition of 3 bytes": (
            good,
            [("kafka_replyTopic", site.replies.encode()), ("kafka_replyPartition", b"\0\0\1")],
            "header kafka_replyPartition",
        ),
        "partition out of range": (
            good,
            request_headers(site.replies, b"c", partition=7),
            f"header kafka_replyPartition = 7: {site.replies} has 1 partitions",
        ),
    }


async def read_dead_letters(site: Site, count: int) -> list[tuple[Origin, Any]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=site.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(site.dead_letters, 0)])
        letters = []
        while len(letters) < count:
            record = await consumer.getone()
            origin = parse_origin(record.headers)
            assert origin is not None
            letters.append((origin, record))
        return letters
    finally:
        await consumer.stop()


async def test_every_bad_record_gets_its_outcome(sites: MakeSite) -> None:
    site = await sites(settings={"limits": {"max_bytes": 2048}})
    with site.worker() as worker:
        async with Mouth(site) as mouth:
            for name, (value, *_) in ANSWERED.items():
                await mouth.send_raw(value, correlation=name.encode())
            quiet = silent(site)
            for value, headers, _ in quiet.values():
                await mouth.send_raw(value, headers=headers)
            last = await mouth.send([42])
            assert (await mouth.reply(last)).outcome is Outcome.OK
            check_replies(mouth)
            await site.caught_up()
        check_counts(worker, quiet.values())
    letters = await read_dead_letters(site, len(DEAD) + 5)
    for (origin, record), name in zip(letters, DEAD, strict=False):
        assert record.value == ANSWERED[name][0]
        assert dict(record.headers)["kafka_correlationId"] == name.encode()
        assert (origin.topic, origin.partition, origin.group) == (site.topic, 0, site.group)
        assert origin.exception_class == "boundgen.MalformedRequest"
        assert origin.attempts == 1
        assert origin.offset == list(ANSWERED).index(name)
        field = ANSWERED[name][3]
        assert field is None or (origin.message or "").startswith(f"{field}: "), origin.message
    said = [origin.message or "" for origin, _ in letters[len(DEAD) :]]
    expected = [message for _, _, message in quiet.values() if message is not None]
    assert all(text.startswith(start) for text, start in zip(said, expected, strict=True)), said
    assert site.ran() == [1, 1, 42]  # of the records without address the two good ones ran


def check_replies(mouth: Mouth) -> None:
    for name, (_, outcome, code, field) in ANSWERED.items():
        (answer,) = mouth.by_correlation[name.encode()]
        error = answer.reply.error
        assert error is not None, name
        assert (answer.reply.outcome, error.code, error.field) == (outcome, code, field), (name, error)
        assert error.message, name
        assert answer.reply.results == ()
        assert answer.reply.worker == "worker"
    assert mouth.by_correlation[b"too many samples"][0].reply.id == "id"
    assert mouth.by_correlation[b"no msgpack"][0].reply.id is None


def check_counts(worker: WorkerProcess, quiet: Sequence[Any] | Any) -> None:
    num_quiet = len(list(quiet))
    assert worker.total("boundgen_records_total") == len(ANSWERED) + num_quiet + 1
    assert worker.total("boundgen_requests_total") == len(ANSWERED) + num_quiet + 1
    assert worker.total("boundgen_inflight_requests") == 0
    assert worker.total("boundgen_requests_total", outcome="ok") == 3
    assert worker.total("boundgen_requests_total", outcome="failed") == 1
    assert worker.total("boundgen_requests_total", outcome="expired") == 2
    assert worker.total("boundgen_requests_total", outcome="rejected") == 2
    assert worker.total("boundgen_model_requests_total") == 3
    assert worker.total("boundgen_dead_letters_total", result="written") == len(DEAD) + 5
    assert worker.total("boundgen_dead_letters_total", result="lost") == 0
