"""What a replay has found: counts, the first divergence, the rest in groups, and the causes. One thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.plain import quote
from tools.replay.changes import Change
from tools.replay.differences import Difference

MAX_GROUPS = 200  # then all others are one
SHOWN_GROUPS = 20
OTHERS = ("(other fields)", "changed")


@dataclass
class Group:
    """The same difference wherever it was."""

    values: int = 0
    requests: int = 0
    largest: float = 0.0
    example: tuple[str, Difference] | None = None  # whose distance is the largest
    last_request: str = ""

    def add(self, name: str, difference: Difference) -> None:
        self.values += 1
        self.requests += name != self.last_request
        self.last_request = name
        if self.example is None or difference.distance > self.largest:
            self.largest, self.example = difference.distance, (name, difference)


@dataclass
class Report:
    """Filled as requests come back, in their order."""

    requests: int = 0
    compared: int = 0
    same: int = 0
    different: int = 0
    unanswered: int = 0  # no recorded reply
    late: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # reason -> requests not run
    timely: Counter[str] = field(default_factory=Counter)  # ended then for want of time -> what it is now
    outcomes: Counter[str] = field(default_factory=Counter)  # now
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    first: tuple[str, Difference] | None = None

    def add(self, name: str, differences: Sequence[Difference]) -> None:
        """A request was compared."""
        self.compared += 1
        self.same += not differences
        self.different += bool(differences)
        if differences and self.first is None:
            self.first = (name, differences[0])
        for each in differences:
            key = each.group if each.group in self.groups or len(self.groups) < MAX_GROUPS else OTHERS
            self.groups.setdefault(key, Group()).add(name, each)

    def lines(self, changes: Sequence[Change]) -> Iterator[str]:
        """For a person."""
        found = f"{self.same:,} same, {self.different:,} different"
        yield f"{self.requests:,} requests, {self.compared:,} compared: {found}"
        for reason, count in self.skipped.items():
            yield f"  {count:,} not run: {reason}"
        if self.unanswered:
            yield f"  {self.unanswered:,} have no recorded reply: run, nothing to compare"
        for words, count in self.timely.items():
            yield f"  {count:,} not compared: {words}, which time decided"
        if self.late:
            yield f"  {self.late:,} took longer here than the time they had"
        for change in changes:
            yield f"  [{change.pipeline}] {change.text}"
        if self.first is None:
            return
        name, difference = self.first
        yield f"first divergence: {name}"
        yield f"  {describe(difference)}"
        yield "all divergences by field:"
        ordered = sorted(self.groups.items(), key=lambda item: -item[1].requests)
        for (path, kind), group in ordered[:SHOWN_GROUPS]:
            yield f"  {path}: {kind} in {group.requests:,} requests, {group.values:,} values{_example(group)}"
        if len(ordered) > SHOWN_GROUPS:
            yield f"  and {len(ordered) - SHOWN_GROUPS} more fields (--json has them)"

    def summary(self, changes: Sequence[Change]) -> dict[str, Any]:
        """For scripts."""
        counts = ("requests", "compared", "same", "different", "unanswered", "late")
        return {
            **{key: getattr(self, key) for key in counts},
            "skipped": dict(self.skipped),
            "timely": dict(self.timely),
            "outcomes": dict(self.outcomes),
            "changes": [vars(each) for each in changes],
            "first": None if self.first is None else {"request": self.first[0], **plain(self.first[1])},
            "groups": [
                {
                    "path": path,
                    "kind": kind,
                    "requests": group.requests,
                    "values": group.values,
                    "largest": group.largest,
                    "example": None
                    if group.example is None
                    else {"request": group.example[0], **plain(group.example[1])},
                }
                for (path, kind), group in self.groups.items()
            ],
        }


def describe(difference: Difference) -> str:
    """results[0].scores.yes: 0.71 -> 0.52 (0.19 apart)."""
    if difference.kind == "added":
        return f"{difference.path}: added, {quote(difference.now)}"
    if difference.kind == "removed":
        return f"{difference.path}: removed, was {quote(difference.was)}"
    apart = f" ({difference.distance:.3g} apart)" if difference.kind == "number" else ""
    return f"{difference.path}: {quote(difference.was)} -> {quote(difference.now)}{apart}"


def plain(difference: Difference) -> dict[str, Any]:
    """As JSON takes it; long values and bytes quoted."""

    def value(given: object) -> object:
        return given if isinstance(given, int | float | None) else quote(given)

    return {
        "path": difference.path,
        "kind": difference.kind,
        "was": difference.was if isinstance(difference.was, str) else value(difference.was),
        "now": difference.now if isinstance(difference.now, str) else value(difference.now),
        "distance": difference.distance,
    }


def _example(group: Group) -> str:
    if group.example is None:
        return ""
    name, difference = group.example
    largest = "largest" if difference.kind == "number" else "such as"
    return f"; {largest}: {describe(difference)} in {name}"
