"""2,000 requests from three producers over two workers, one of them killed half-way and started again.

At least once, and not much more: every request gets its outcome, what is answered twice had been answered by
the killed worker but not yet committed, and in the end nothing is left to commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from schemas.messages import Outcome
from worker_service import Answer, MakeSite, Mouth

NUM_REQUESTS = 2000
PARTITIONS = 4
QUEUE = {"max_requests": 64, "max_uncommitted": 200}
WINDOW = sum(QUEUE.values())  # records that one worker may have taken and not committed


@dataclass(frozen=True)
class Planned:
    """A request to send, and what must become of it."""

    id: str
    numbers: tuple[int | str, ...]
    partition: int
    priority: int
    timeout_ms: int | None
    outcome: Outcome


def plan_requests() -> Iterator[Planned]:
    rng = random.Random(3)
    for index in range(NUM_REQUESTS):
        numbers: tuple[int | str, ...] = tuple(index * 4 + sample for sample in range(rng.randint(1, 4)))
        timeout_ms, outcome = None, Outcome.OK
        if index % 20 == 7:
            timeout_ms, outcome = 0, Outcome.EXPIRED
        elif index % 50 == 11:
            numbers, outcome = ("seven",), Outcome.INVALID
        priority = rng.choice((0, 0, 0, 9))
        yield Planned(f"request-{index}", numbers, index % PARTITIONS, priority, timeout_ms, outcome)


async def produce(mouth: Mouth, requests: Sequence[Planned]) -> None:
    for each in requests:
        await mouth.send(
            each.numbers,
            request_id=each.id,
            partition=each.partition,
            priority=each.priority,
            timeout_ms=each.timeout_ms,
        )


async def test_every_request_survives_a_killed_worker(sites: MakeSite):
    site = await sites(
        partitions=PARTITIONS,
        model={"sleep_ms": 10, "requests": 8},
        settings={"queue": QUEUE, "kafka": {"session_timeout_ms": 6000, "commit_interval_ms": 200}},
    )
    requests = list(plan_requests())
    async with AsyncExitStack() as stack:
        stack.enter_context(site.worker("survivor"))
        victim = stack.enter_context(site.worker("victim"))
        mouths = [await stack.enter_async_context(Mouth(site)) for _ in range(3)]
        early, late = requests[: NUM_REQUESTS * 3 // 4], requests[NUM_REQUESTS * 3 // 4 :]
        producing = [
            asyncio.create_task(produce(mouth, early[number::3])) for number, mouth in enumerate(mouths)
        ]
        heard = mouths[0]
        await heard.until(lambda: len(heard.by_id) >= NUM_REQUESTS // 4 and num_by(heard, "victim") >= 20)
        victim.child.process.kill()
        committed = await site.committed()  # the group takes 6 s to notice: these are the victim's last
        stack.enter_context(site.worker("restarted"))
        await asyncio.gather(*producing)
        # However long a start takes here, there is work left for it.
        await asyncio.gather(*(produce(mouth, late[number::3]) for number, mouth in enumerate(mouths)))
        await heard.until(lambda: len(heard.by_id) >= NUM_REQUESTS)
        await site.caught_up()
        assert num_by(heard, "restarted") > 0
        places = {request_id: place for mouth in mouths for request_id, place in mouth.places.items()}
    for planned in requests:
        for answer in heard.by_id[planned.id]:
            check_reply(planned, answer)
    twice = {request_id: answers for request_id, answers in heard.by_id.items() if len(answers) > 1}
    assert len(twice) <= WINDOW
    for request_id, answers in twice.items():
        first, second = answers  # never three times
        partition, offset = places[str(request_id)]
        assert first.reply.worker == "victim"
        assert second.reply.attempt >= first.reply.attempt  # above as far as its commits had told
        assert committed.get(partition, 0) <= offset < committed.get(partition, 0) + WINDOW


def num_by(mouth: Mouth, worker: str) -> int:
    return sum(answer.reply.worker == worker for answer in mouth.answers)


def check_reply(planned: Planned, answer: Answer) -> None:
    """The reply is this request's: outcome, rows in order, correlation id."""
    assert answer.reply.outcome is planned.outcome
    assert ("kafka_correlationId", planned.id.encode()) in answer.record.headers
    if planned.outcome is Outcome.OK:
        rows = tuple({"id": index, "number": number} for index, number in enumerate(planned.numbers))
        assert answer.reply.results == rows
    else:
        assert answer.reply.results == ()
        assert answer.reply.error is not None
