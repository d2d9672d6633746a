"""Replies compared field by field."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from schemas.messages import ErrorCode, ErrorInfo, Outcome, Reply, Timing, Usage
from tools.replay.changes import compare_settings
from tools.replay.differences import Tolerance, compare_replies, labels_in
from tools.replay.report import Report, describe

EXACT, LOOSE = Tolerance(0, 0), Tolerance(0.01, 0.1)


def ok(*rows: dict[str, Any], tokens: int = 3) -> Reply:
    return Reply(id="r", outcome=Outcome.OK, results=rows, usage=Usage(samples=len(rows), tokens=tokens))


def failed(code: ErrorCode, message: str, field: str | None = None) -> Reply:
    return Reply(id="r", outcome=code.outcome, error=ErrorInfo(code=code, message=message, field=field))


def paths(was: Reply, now: Reply, tolerance: Tolerance = EXACT) -> list[tuple[str, str]]:
    return [(each.path, each.kind) for each in compare_replies(was, now, tolerance)]


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_how_a_reply_came_about_is_no_difference():
    now = ok({"id": 0}).model_copy(update={"timing": Timing(gpu_ms=9), "worker": "w", "attempt": 3})
    assert paths(ok({"id": 0}), now) == []


@pytest.mark.parametrize(
    ("was", "now", "found"),
    [
        ({"a": 1.0}, {"a": 1.05}, []),  # 0.01 + a tenth
        ({"a": 1.0}, {"a": 1.2}, [("results[0].a", "number")]),
        ({"a": 1}, {"a": 1.0}, []),  # msgpack of some languages has no other numbers
        ({"a": 1000}, {"a": 1001}, [("results[0].a", "number")]),  # counts and ids
        ({"a": True}, {"a": 1}, [("results[0].a", "changed")]),
        ({"a": "x"}, {"a": "y"}, [("results[0].a", "changed")]),
        ({"a": None}, {"a": 0.0}, [("results[0].a", "changed")]),
        ({"a": None}, {}, [("results[0].a", "removed")]),
        ({}, {"a": None}, [("results[0].a", "added")]),
        ({"a": [1.0, 2.0]}, {"a": [1.0]}, [("results[0].a[1]", "removed")]),
        ({"a": {"b": [{"c": 1.0}]}}, {"a": {"b": [{"c": 2.0}]}}, [("results[0].a.b[0].c", "number")]),
        ({"a": vector(1, 2)}, {"a": vector(1, 2.05)}, []),
        ({"a": vector(1, 2)}, {"a": vector(1, 3)}, [("results[0].a", "number")]),
        ({"a": vector(1, 2)}, {"a": vector(1)}, [("results[0].a", "changed")]),
        ({"a": b"abc"}, {"a": b"abd"}, [("results[0].a", "changed")]),
    ],
)
def test_values(was: dict[str, Any], now: dict[str, Any], found: list[tuple[str, str]]):
    assert paths(ok(was), ok(now), LOOSE) == found


def test_rows_and_tokens():
    assert paths(ok({"id": 0}), ok({"id": 0}, {"id": 1}, tokens=5)) == [
        ("usage.samples", "number"),
        ("usage.tokens", "number"),
        ("results[1]", "added"),
    ]


def test_another_outcome_is_one_difference_not_every_row():
    found = paths(ok({"id": 0}), failed(ErrorCode.INTERNAL, "boom"))
    assert [path for path, _ in found] == ["outcome", "error.code", "error.field", "error.message"]


def test_messages_that_hold_times_are_not_compared():
    late, later = (failed(ErrorCode.DEADLINE_EXCEEDED, f"{number} ms ago") for number in (1, 2))
    assert paths(late, later) == []
    assert paths(failed(ErrorCode.INTERNAL, "a"), failed(ErrorCode.INTERNAL, "b")) == [
        ("error.message", "changed")
    ]


def test_labels_are_found_at_any_depth():
    assert labels_in(
        [{"scores": {"a": 1}}, {"one": {"scores": {"b": 1}}, "two": [{"scores": {"c": 1}}]}]
    ) == set("abc")


def test_settings_by_dotted_path():
    was = {"nodes": {"m": {"labels": {"yes": " yes", "no": " no"}, "k": 1}}, "name": "p"}
    now = {"nodes": {"m": {"labels": {"yes": " Yes"}, "k": 1}, "n": {}}, "name": "p"}
    assert list(compare_settings("", was, now)) == [
        ("nodes.m.labels.yes", " yes", " Yes"),
        ("nodes.m.labels.no", " no", None),
        ("nodes.n", None, {}),
    ]


def test_a_report_groups_rows_and_requests_and_keeps_the_largest():
    report = Report()
    report.add("first", compare_replies(ok({"a": 1.0}, {"a": 1.0}), ok({"a": 1.5}, {"a": 3.0}), EXACT))
    report.add("second", compare_replies(ok({"a": 1.0}), ok({"a": 2.0}), EXACT))
    report.add("third", [])
    ((key, group),) = report.groups.items()
    assert key == ("results[*].a", "number")
    assert (group.values, group.requests, group.largest) == (3, 2, 2.0)
    assert report.first is not None
    assert report.first[0] == "first"
    assert describe(report.first[1]) == "results[0].a: 1.0 -> 1.5 (0.5 apart)"
    text = "\n".join(report.lines([]))
    assert "3 compared: 1 same, 2 different" in text
    assert "results[*].a: number in 2 requests, 3 values; largest: results[1].a: 1.0 -> 3.0" in text
