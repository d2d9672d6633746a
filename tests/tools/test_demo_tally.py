"""Counting: what differs from the plan is told, and the summary's line has the promised keys."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from schemas.messages import Outcome, Reply
from tools.demo.queries import Query, read_queries
from tools.demo.tally import Answered, WorkerSide, differences, quantile, summarise

GOOD = WorkerSide(dead_letter=3, model_runs_of_dropped=0, lag=0)


def answered(query: Query, outcome: Outcome | None = None) -> Answered:
    made = {"beams": [{"text": " Sofas", "item_ids": ["sofas"]}]} if query.pipeline == "recall" else {}
    rows = tuple({"id": index, **made} for index, _ in enumerate(query.samples))
    outcome = outcome or query.fate
    reply = Reply(id=query.id, outcome=outcome, results=rows if outcome is Outcome.OK else ())
    return Answered(query, reply, 12.0)


def test_everything_as_planned_differs_in_nothing():
    answers = [answered(query) for query in read_queries()]
    assert differences(answers, GOOD) == []
    assert asdict(summarise(answers, GOOD)) == {
        "requests": 60,
        "ok": 46,
        "recall": 6,
        "expired": 6,
        "cancelled": 3,
        "invalid": 3,
        "rejected": 2,
        "dead_letter": 3,
        "model_runs_of_dropped": 0,
        "lag": 0,
        "p50_ms": 12.0,
        "p99_ms": 12.0,
    }


def test_each_difference_is_named():
    answers = [answered(query) for query in read_queries()]
    answers[0] = answered(answers[0].query, Outcome.FAILED)
    answers[1] = Answered(answers[1].query, None, None)
    found = differences(answers, WorkerSide(dead_letter=2, model_runs_of_dropped=1, lag=4))
    assert len(found) == 5
    assert "demo-01" in found[0]
    assert "expected ok, got failed" in found[0]
    assert "demo-02" in found[1]
    assert "got no reply" in found[1]
    assert found[2:] == [
        "2 dead letters, expected 3 (the malformed records)",
        "1 dropped requests reached the model, expected 0",
        "committed lag 4 after the worker's end, expected 0",
    ]


def test_a_reply_without_its_rows_differs():
    query = next(query for query in read_queries() if query.fate is Outcome.OK)
    short = Answered(query, Reply(id=query.id, outcome=Outcome.OK, results=({"id": 0},)), 1.0)
    assert differences([short], WorkerSide(0, 0, 0)) == [f"demo-01: 1 rows for {len(query.samples)} samples"]


@pytest.mark.parametrize(
    ("beams", "said"),
    [
        ([], "found nothing"),
        ([{"text": " Sofas", "item_ids": ["sofas"]}, {"text": " So", "item_ids": []}], "no item"),
    ],
)
def test_a_recall_that_is_no_item_differs_and_is_not_counted(beams: list[dict[str, object]], said: str):
    query = next(query for query in read_queries() if query.pipeline == "recall")
    reply = Reply(id=query.id, outcome=Outcome.OK, results=({"id": 0, "beams": beams},))
    answers = [Answered(query, reply, 1.0)]
    (found,) = differences(answers, WorkerSide(0, 0, 0))
    assert query.id in found
    assert said in found
    assert summarise(answers, WorkerSide(0, 0, 0)).recall == 0


def test_quantiles():
    assert quantile([], 50) == 0.0
    assert quantile([7.04], 99) == 7.0
    assert quantile([float(value) for value in range(101)], 99) == 99.0
