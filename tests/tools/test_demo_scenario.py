"""The order of the scenario: traffic, a burst behind a running batch, cancellations at its end, the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from schemas.messages import Outcome, Reply
from tools.demo.queries import Query, read_queries
from tools.demo.scenario import Scenario
from tools.demo.table import best_answer, make_table
from tools.demo.tally import Answered
from tools.errors import UserError


class Handle:
    """A request that is answered a moment later, as its fate has it."""

    def __init__(self, query: Query) -> None:
        self.id = query.id
        self._query = query

    async def reply(self) -> Reply:
        await asyncio.sleep(0.001)
        return Reply(id=self.id, outcome=self._query.fate)


class Recorder:
    """Client and raw sender in one that only writes down what it is told."""

    def __init__(self, redis_works: bool = True) -> None:
        self.log: list[tuple[str, str]] = []
        self.requests: dict[str, dict[str, Any]] = {}
        self._queries = {query.id: query for query in read_queries()}
        self._redis_works = redis_works

    async def submit(self, pipeline: str, samples: object, **options: Any) -> Handle:
        self.log.append(("submit", options["id"]))
        self.requests[options["id"]] = options
        return Handle(self._queries[options["id"]])

    async def cancel(self, request_id: str) -> bool:
        self.log.append(("cancel", request_id))
        return self._redis_works

    async def send(self, topic: str, value: bytes, wait_s: float) -> Reply:
        self.log.append(("raw", topic))
        return Reply(id=None, outcome=Outcome.INVALID)


async def run(recorder: Any, batches: Any) -> list[Answered]:
    topics = {"relevance": "r", "intent": "i"}
    return await Scenario(recorder, recorder, topics, batches, lambda: None).run(read_queries())


async def test_the_burst_waits_for_a_batch_and_ends_in_cancellations():
    recorder = Recorder()
    polls = iter([3, 3, 3, 4])
    answers = await run(recorder, lambda pipeline: float(next(polls)))
    assert [answer.query for answer in answers] == list(read_queries())
    assert all(answer.outcome is answer.query.fate for answer in answers)
    burst = [query.id for query in read_queries() if query.burst]
    sent = [name for what, name in recorder.log if what == "submit"]
    first = sent.index(burst[0])
    assert sent[first : first + len(burst)] == burst
    cancelled = [query.id for query in read_queries() if query.fate is Outcome.CANCELLED]
    assert burst[-3:] == cancelled
    for name in cancelled:
        assert recorder.log.index(("cancel", name)) > recorder.log.index(("submit", name))
        assert recorder.requests[name]["priority"] == 9
    expired = [query.id for query in read_queries() if query.fate is Outcome.EXPIRED]
    assert {recorder.requests[name]["timeout_ms"] for name in expired} == {-2_000}
    assert sum(what == "raw" for what, _ in recorder.log) == 3


async def test_a_cancellation_that_redis_did_not_take_is_told():
    polls = iter(range(100))
    with pytest.raises(UserError, match="demo-5"):
        await run(Recorder(redis_works=False), lambda pipeline: float(next(polls)))


def test_the_table_shows_best_title_intent_and_reason():
    relevance, intent = (
        next(q for q in read_queries() if q.pipeline == name) for name in ("relevance", "intent")
    )
    rows = tuple(
        {"id": index, "label": "no", "scores": {"yes": 0.1 * index, "no": 1 - 0.1 * index}}
        for index, _ in enumerate(relevance.samples)
    )
    best = relevance.samples[-1]["title"]
    assert best_answer(relevance, Reply(id="a", outcome=Outcome.OK, results=rows)) == (
        best,
        f"{0.1 * (len(rows) - 1):.2f}",
    )
    row = {"id": 0, "label": "buy", "scores": {"buy": 0.7, "help": 0.3}}
    assert best_answer(intent, Reply(id="a", outcome=Outcome.OK, results=(row,))) == ("buy", "0.70")
    assert best_answer(intent, Reply(id="a", outcome=Outcome.EXPIRED)) == ("", "")
    assert best_answer(intent, None) == ("", "")
    assert make_table([Answered(intent, None, None)]).row_count == 1
