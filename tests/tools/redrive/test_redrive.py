"""`boundgen redrive` on a real broker, over dead letters that were put there."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path
from typing import Any

import msgpack
import pytest
import yaml
from aiokafka import AIOKafkaProducer

from schemas.deadletter import parse_origin
from tools.redrive.letters import Letter
from tools.redrive.run import Plan, redrive
from tools.redrive.selection import Selection, Span


def request(request_id: str) -> bytes:
    packed: bytes = msgpack.packb({"v": 9, "id": request_id, "samples": []})
    return packed


async def test_what_came_goes_back_to_its_place(posts: Any) -> None:
    post = await posts(partitions=2)
    headers = [("kafka_correlationId", b"\x00\xff"), ("odd", None), ("odd", b"2"), ("traceparent", b"00-1")]
    await post.bury(b"\xc1 broken", headers, key=b"key", partition=1, message="not msgpack")
    await post.bury(None, [("reply_to", b"replies")], key=b"tombstone", partition=0)
    await post.bury(b"", partition=0)
    outcome = await post.redrive("--send", "--rate", "0")
    assert (outcome.status, outcome.summary["sent"], outcome.summary["left"]) == (0, 3, {}), outcome.told
    tombstone, empty, broken = await post.records()
    assert (broken.partition, broken.key, broken.value) == (1, b"key", b"\xc1 broken")
    assert [header for header in broken.headers if not header[0].startswith("kafka_dlt-")] == headers
    assert (tombstone.partition, tombstone.key, tombstone.value) == (0, b"tombstone", None)
    assert (empty.key, empty.value) == (None, b"")
    buried = await post.records(post.dead_letters)
    assert parse_origin(broken.headers) == parse_origin(buried[-1].headers)
    assert broken.timestamp >= buried[-1].timestamp > 1_700_000_000_000  # a timeout_ms counts from now


async def test_a_dry_run_is_the_default_and_writes_nothing(posts: Any) -> None:
    post = await posts()
    await post.bury(request("r-1"))
    await post.bury(request("r-2"), message="id: missing")
    outcome = await post.redrive("--list")
    assert outcome.status == 0
    assert (outcome.summary["dry_run"], outcome.summary["sent"], outcome.summary["would_send"]) == (
        True,
        0,
        2,
    )
    assert outcome.summary["destinations"] == {post.topic: 2}
    assert [line["id"] for line in outcome.listed] == ["r-1", "r-2"]
    assert outcome.listed[0]["to"] == [post.topic, 0]
    assert "--send does it" in outcome.told
    assert "2 boundgen.MalformedRequest, such as: v: missing" in outcome.told
    assert await post.records() == []


async def test_the_guard_leaves_what_came_back_too_often(posts: Any) -> None:
    post = await posts()
    for attempts in (1, 2, 3, 9):
        await post.bury(request(f"r-{attempts}"), attempts=attempts)
    outcome = await post.redrive("--send", "--rate", "0", "--list")
    assert (outcome.status, outcome.summary["sent"], outcome.summary["left"]) == (1, 2, {"attempts": 2})
    assert [line["stays"] for line in outcome.listed] == [None, None, "attempts", "attempts"]
    assert [msgpack.unpackb(record.value)["id"] for record in await post.records()] == ["r-1", "r-2"]
    assert (await post.redrive("--max-attempts", "1")).summary["left"] == {"attempts": 4}
    assert (await post.redrive("--max-attempts", "10")).summary["would_send"] == 4


async def test_what_cannot_go_back_stays_and_says_why(posts: Any) -> None:
    post = await posts()
    await post.send(b"no letter", [("kafka_correlationId", b"c")])
    await post.bury(b"x", topic="gone." + uuid.uuid4().hex)
    await post.bury(b"x", topic=post.dead_letters)
    await post.bury(b"moved", partition=5)
    outcome = await post.redrive("--send")
    assert outcome.status == 1
    assert outcome.summary["left"] == {"no_origin": 1, "origin_is_dead_letters": 1, "topic_missing": 1}
    assert (outcome.summary["sent"], outcome.summary["moved"]) == (1, 1)
    assert [record.value for record in await post.records()] == [b"moved"]
    assert len(await post.records(post.dead_letters)) == 4  # no topic was made, nothing came back here


async def test_one_that_its_topic_refuses_does_not_hold_up_the_others(posts: Any, topics: Any) -> None:
    post = await posts()
    small = await topics(configs={"max.message.bytes": "1000"})
    await post.bury(b"x" * 5000, topic=small)
    await post.bury(b"fits", topic=small)
    if (outcome := await post.redrive("--send")).summary["sent"] == 2:
        pytest.skip("this broker does not bound the size of a topic's messages")
    assert (outcome.status, outcome.summary["sent"], outcome.summary["left"]) == (1, 1, {"refused": 1})
    assert "MessageSizeTooLarge" in outcome.told
    assert [record.value for record in await post.records(small)] == [b"fits"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--exception", r"Reply\w+$"], ["c"]),
        (["--message", "^v: "], ["a", "b"]),
        (["--message", "missing", "--exception", "Malformed"], ["a", "b"]),
        (["--id", "b", "--id", "c"], ["b", "c"]),
        (["--original-topic", "TOPIC"], ["a", "b", "c"]),
        (["--original-topic", "elsewhere"], []),
        (["--partition", "1"], ["b"]),
        (["--partition", "DLT:0"], ["a", "c"]),
        (["--from-offset", "0=1"], ["c", "b"]),
        (["--to-offset", "DLT:0=1", "--partition", "0"], ["a"]),
        (["--since", "2020-01-01"], ["a", "c", "b"]),
        (["--until", "2020-01-01T00:00:00+01:00"], []),
        (["--since", "1577836800000", "--limit", "2"], ["a", "c"]),
    ],
)
async def test_filters(posts: Any, arguments: list[str], expected: list[str]) -> None:
    post = await posts(partitions=2)
    await post.bury(request("a"), partition=0)
    await post.bury(request("b"), partition=1)
    await post.bury(request("c"), exception_class="boundgen.ReplyUndeliverable", message="no topic")
    named = [each.replace("TOPIC", post.topic).replace("DLT", post.dead_letters) for each in arguments]
    outcome = await post.redrive("--list", *named)
    assert sorted(line["id"] for line in outcome.listed) == sorted(expected), outcome.told
    assert outcome.summary["would_send"] == len(expected)


async def test_a_run_goes_on_where_the_one_before_stopped(posts: Any) -> None:
    post = await posts(partitions=2)
    for number in range(7):
        await post.bury(request(f"r-{number}"), partition=number % 2)
    first = await post.redrive("--send", "--rate", "0", "--limit", "3")
    assert (first.status, first.summary["stopped"], first.summary["sent"]) == (0, "limit", 3)
    going_on = first.told.split("go on behind this with: ")[1].split()
    second = await post.redrive("--send", "--rate", "0", *going_on)
    assert (second.summary["stopped"], second.summary["sent"]) == (None, 4)
    assert second.summary["next"] == {f"{post.dead_letters}:0": 4, f"{post.dead_letters}:1": 3}
    sent = [(record.partition, msgpack.unpackb(record.value)["id"]) for record in await post.records()]
    assert sent == [(number % 2, f"r-{number}") for number in (0, 2, 4, 6, 1, 3, 5)]  # each once, in order
    third = await post.redrive("--send", *second.told.split("go on behind this with: ")[1].split())
    assert (third.summary["read"], third.summary["sent"]) == (0, 0)


async def test_what_arrives_meanwhile_is_not_part_of_the_run(posts: Any) -> None:
    """The request topic and the dead letter topic of another stage may be one: a run still ends."""
    post = await posts()
    async with AIOKafkaProducer(bootstrap_servers=post.bootstrap, acks="all") as producer:
        await post.bury(request("r-0"))
        stop = asyncio.Event()

        async def keep_burying() -> None:
            (letter,) = await post.records(post.dead_letters)
            while not stop.is_set():
                await producer.send_and_wait(post.dead_letters, letter.value, headers=list(letter.headers))

        burying = asyncio.create_task(keep_burying())
        try:
            outcome = await post.redrive("--send", "--rate", "0")
        finally:
            stop.set()
            await burying
    buried, sent = len(await post.records(post.dead_letters)), len(await post.records())
    assert outcome.status == 0
    assert outcome.summary["sent"] == sent < buried


@pytest.mark.parametrize("rate", [0, 0.001])
async def test_told_to_stop_it_ends_between_two_records(posts: Any, rate: float) -> None:
    """With 0.001 a second: while it waits a quarter of an hour for the second one's turn."""
    post = await posts()
    for number in range(3):
        await post.bury(request(f"r-{number}"))
    stop, heard = asyncio.Event(), list[int]()

    def told(letter: Letter, fate: object) -> None:
        heard.append(letter.offset)
        asyncio.get_running_loop().call_soon(stop.set)

    plan = Plan((post.dead_letters,), Span(), Selection(), send=True, max_attempts=3, rate=rate, limit=None)
    tally = await redrive({"bootstrap_servers": post.bootstrap}, plan, stop, told)
    assert tally.stopped == "signal"
    assert heard == list(range(tally.sent))
    assert 1 <= tally.sent < 3
    assert list(tally.next_offsets.values()) == [tally.sent]
    assert len(await post.records()) == tally.sent


async def test_letters_of_a_transaction_and_its_markers(posts: Any, apache_kafka: str) -> None:
    post = await posts()
    options = {"bootstrap_servers": apache_kafka, "transactional_id": uuid.uuid4().hex}
    await post.bury(b"plain")
    (letter,) = await post.records(post.dead_letters)
    async with AIOKafkaProducer(**options) as producer:
        async with producer.transaction():
            await producer.send_and_wait(post.dead_letters, b"kept", headers=list(letter.headers))
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(post.dead_letters, b"aborted", headers=list(letter.headers))
                raise ZeroDivisionError
    outcome = await post.redrive("--send")
    assert outcome.summary["sent"] == 2, outcome.told
    assert [record.value for record in await post.records()] == [b"plain", b"kept"]


async def test_a_workers_configuration_names_cluster_and_topics(
    posts: Any, sites: Any, tmp_path: Path
) -> None:
    post, site = await posts(), await sites()
    written = {
        "pipelines": [{"config": str(site.write_pipeline()), "topic": post.topic}],
        "kafka": {"bootstrap_servers": post.bootstrap},
    }
    (tmp_path / "worker.yaml").write_text(yaml.safe_dump(written))
    await post.bury(request("r-1"))
    outcome = await post.redrive("--config", str(tmp_path / "worker.yaml"), cluster=False)
    assert (outcome.status, outcome.summary["destinations"]) == (0, {post.topic: 1})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--message", "("], "--message = '('"),
        (["--since", "yesterday"], "--since = 'yesterday'"),
        (["--from-offset", "0"], "--from-offset = '0'"),
        (["--from-offset", "0=1", "--from-offset", "0=2"], "given twice"),
        (["--partition", "x"], "--partition = 'x'"),
        (["--partition", "4"], "partition '4' does not exist"),
        (["not-there-dlt"], "topic 'not-there-dlt' does not exist"),
        (["--config", "worker.yaml"], "either --bootstrap-servers or --config"),
    ],
)
async def test_wrong_use_is_one_message(posts: Any, arguments: list[str], told: str) -> None:
    outcome = await (await posts()).redrive(*arguments)
    assert outcome.status == 2
    assert told in outcome.told
    assert "Traceback" not in outcome.told


async def test_no_broker_is_one_message(posts: Any) -> None:
    outcome = await (await posts()).redrive("t-dlt", "--bootstrap-servers", "127.0.0.1:1", cluster=False)
    assert outcome.status == 2
    assert "no Kafka at 127.0.0.1:1" in outcome.told
