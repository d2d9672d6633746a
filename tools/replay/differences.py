"""Two replies to one request, field by field. Pure.

Compared are outcome, error, results and usage. Timing, worker and attempt say how a reply came about, not
what it says; the model is told of as a cause (changes.py). Numbers are equal within the tolerance, unless
both are whole (tokens, ids, fixed values); vectors as bytes are compared as their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from schemas.embeddings import read_vector
from schemas.messages import ErrorCode, ErrorInfo, Reply

Kind = Literal["changed", "number", "added", "removed"]
TIMELY = frozenset(
    {ErrorCode.DEADLINE_EXCEEDED, ErrorCode.CANCELLED, ErrorCode.OVERLOADED, ErrorCode.SHUTTING_DOWN}
)
"""Ends that depend on when a request came and what else ran, not on what it holds."""
_INDEX = re.compile(r"\[\d+\]")
_ABSENT = object()


@dataclass(frozen=True)
class Tolerance:
    """Numbers a, b are equal if |a - b| <= absolute + relative * |recorded|."""

    absolute: float
    relative: float

    def holds(self, was: float, now: float) -> bool:
        return abs(was - now) <= self.absolute + self.relative * abs(was)


@dataclass(frozen=True)
class Difference:
    """At `path` the recorded reply has `was`, the new one `now`. `distance`: of numbers."""

    path: str
    kind: Kind
    was: object = None
    now: object = None
    distance: float = 0.0

    @property
    def group(self) -> tuple[str, Kind]:
        """The same difference in other rows and requests."""
        return _INDEX.sub("[*]", self.path), self.kind


def is_timely(reply: Reply) -> bool:
    """Whether the outcome says nothing about what the request holds."""
    return reply.error is not None and reply.error.code in TIMELY


def compare_replies(was: Reply, now: Reply, tolerance: Tolerance) -> list[Difference]:
    """In the order outcome, error, usage, results; empty: the same."""
    found: list[Difference] = []
    if was.outcome is not now.outcome:
        found.append(Difference("outcome", "changed", str(was.outcome), str(now.outcome)))
    found += _compare("error", _error(was.error), _error(now.error), tolerance)
    if was.outcome is not now.outcome:
        return found  # one has rows and the other does not
    found += _compare("usage", was.usage.model_dump(), now.usage.model_dump(), tolerance)
    found += _compare("results", was.results, now.results, tolerance)
    return found


def _error(error: ErrorInfo | None) -> dict[str, object]:
    if error is None:
        return {}
    told: dict[str, object] = {"code": str(error.code), "field": error.field}
    return told if error.code in TIMELY else {**told, "message": error.message}


def _compare(path: str, was: Any, now: Any, tolerance: Tolerance) -> Iterator[Difference]:
    if was is _ABSENT:
        yield Difference(path, "added", None, now)
    elif now is _ABSENT:
        yield Difference(path, "removed", was, None)
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*was, *(key for key in now if key not in was)]:
            yield from _compare(f"{path}.{key}", was.get(key, _ABSENT), now.get(key, _ABSENT), tolerance)
    elif isinstance(was, (list, tuple)) and isinstance(now, (list, tuple)):
        for index, (old, new) in enumerate(zip_longest(was, now, fillvalue=_ABSENT)):
            yield from _compare(f"{path}[{index}]", old, new, tolerance)
    else:
        yield from _compare_leaves(path, was, now, tolerance)


def _compare_leaves(path: str, was: Any, now: Any, tolerance: Tolerance) -> Iterator[Difference]:
    if _is_vector(was) and _is_vector(now):
        yield from _compare_vectors(path, was, now, tolerance)
    elif _is_number(was) and _is_number(now):
        whole = isinstance(was, int) and isinstance(now, int)
        if (was != now) if whole else not tolerance.holds(was, now):
            yield Difference(path, "number", was, now, abs(was - now))
    elif type(was) is not type(now) or was != now:
        yield Difference(path, "changed", was, now)


def _compare_vectors(path: str, was: bytes, now: bytes, tolerance: Tolerance) -> Iterator[Difference]:
    """One difference a vector: what is in it has no meaning number by number."""
    old, new = read_vector(was), read_vector(now)
    if len(old) != len(new):
        yield Difference(path, "changed", was, now)
        return
    apart = [(abs(a - b), a, b) for a, b in zip(old, new, strict=True) if not tolerance.holds(a, b)]
    if apart:
        distance, a, b = max(apart)
        yield Difference(path, "number", a, b, distance)


def _is_vector(value: object) -> bool:
    """Bytes in rows are vectors, if their length allows."""
    return isinstance(value, bytes) and len(value) % 4 == 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def labels_in(results: Sequence[Mapping[str, Any]]) -> set[str]:
    """The labels that rows give scores to, at whatever depth."""
    found: set[str] = set()
    stack: list[Any] = list(results)
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            if isinstance(scores := node.get("scores"), Mapping):
                found.update(map(str, scores))
            stack += [each for each in node.values() if isinstance(each, (Mapping, list, tuple))]
        elif isinstance(node, (list, tuple)):
            stack += [each for each in node if isinstance(each, (Mapping, list, tuple))]
    return found
