"""A replay from beginning to end: requests out of captures, each run again, compared, told of.

Several requests are under way at once, each a batch of its own; results are taken in order. Deterministic:
one at a time on one lane, each twice, and the bits of both must agree. One thread.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from schemas.codec import encode_reply
from schemas.messages import Reply, Timing
from tools.replay.changes import Changes
from tools.replay.differences import Difference, Tolerance, compare_replies, is_timely
from tools.replay.exchanges import CaptureSet, Exchange
from tools.replay.explain import Observed, explanation, explanation_lines, node_values
from tools.replay.report import Report
from tools.replay.rerun import PendingRerun, Rerun, Rerunner
from tools.replay.selection import Selection

UNDER_WAY = 8  # requests; a lane always has a next one, and memory stays small


@dataclass
class Repeats:
    """Of a deterministic run. digest: over every request's place and answer, to compare two runs by."""

    repeated: int = 0  # both times the same bits
    unrepeatable: int = 0
    as_recorded: int = 0  # the recorded reply's bits too
    digest: Any = field(default_factory=hashlib.sha256)

    def summary(self) -> dict[str, Any]:
        return {**vars(self), "digest": self.digest.hexdigest()}


class Replay:
    """One run; `report`, `changes`, `repeats` and `explained` are complete afterwards."""

    def __init__(
        self,
        captures: CaptureSet,
        rerunner: Rerunner,
        tolerance: Tolerance,
        *,
        deterministic: bool,
        explain: bool,
        say: Callable[[str], None],
    ) -> None:
        """`say` is told what there is to tell of a request, line by line."""
        self.report = Report()
        self.repeats = Repeats() if deterministic else None
        self.changes = Changes(captures.pipelines, rerunner.configs)
        self.explained: list[dict[str, Any]] = []
        self._captures = captures
        self._rerunner = rerunner
        self._tolerance = tolerance
        self._explain = explain
        self._say = say

    def run(self, selection: Selection) -> None:
        """ConfigError, ArtifactError, UserError: nothing can be run, or the captures not read."""
        for exchange, pending, observed in self._started(selection):
            rerun = pending.finish()
            if self.repeats is not None:
                self._repeat(exchange, rerun, self.repeats)
            self._take(exchange, rerun, observed)

    def _started(self, selection: Selection) -> Iterator[tuple[Exchange, PendingRerun, Observed | None]]:
        """In order, some of them running ahead."""
        ahead = 1 if self.repeats is not None else UNDER_WAY
        waiting: deque[tuple[Exchange, PendingRerun, Observed | None]] = deque()
        for exchange in self._captures.exchanges(selection):
            self.report.requests += 1
            name = self._rerunner.pipeline_of(exchange)
            if name is None:
                self.report.skipped["its pipeline is not in the configuration"] += 1
                continue
            observed = Observed() if self._explain else None
            waiting.append((exchange, self._rerunner.start(exchange, name, observed), observed))
            while len(waiting) >= ahead:
                yield waiting.popleft()
        yield from waiting

    def _repeat(self, exchange: Exchange, rerun: Rerun, repeats: Repeats) -> None:
        bits = answer_bits(rerun.reply)
        again = self._rerunner.start(exchange, rerun.pipeline).finish()
        same = answer_bits(again.reply) == bits
        repeats.repeated += same
        repeats.unrepeatable += not same
        if exchange.reply is not None:
            repeats.as_recorded += answer_bits(exchange.reply) == bits
        repeats.digest.update(exchange.request.place.encode() + b"\0" + bits)

    def _take(self, exchange: Exchange, rerun: Rerun, observed: Observed | None) -> None:
        report, was, now = self.report, exchange.reply, rerun.reply
        report.outcomes[str(now.outcome)] += 1
        report.late += rerun.late
        differences: list[Difference] = []
        if exchange.unread is not None:
            report.skipped[f"recorded reply unreadable: {exchange.unread}"] += 1
        elif was is None:
            report.unanswered += 1
        elif is_timely(was) and not is_timely(now):
            report.timely[f"{was.outcome} then, {now.outcome} now"] += 1
        else:
            differences = compare_replies(was, now, self._tolerance)
            report.add(exchange.name, differences)
            self.changes.see(rerun.pipeline, was, now, bool(differences))
        if observed is not None:
            config = self._rerunner.configs[rerun.pipeline]
            nodes = node_values(observed, config, self._rerunner.artifacts)
            told = explanation(exchange, rerun, differences, nodes)
            self.explained.append(told)
            for line in explanation_lines(told, differences):
                self._say(line)


def answer_bits(reply: Reply) -> bytes:
    """What a reply says, without how it came about (time, worker, attempt, model)."""
    bare = reply.model_copy(update={"timing": Timing(), "worker": None, "attempt": 1, "model": None})
    if is_timely(reply) and reply.error is not None:
        bare = bare.model_copy(update={"error": reply.error.model_copy(update={"message": ""})})
    return encode_reply(bare)
