"""What became of the demo's requests, counted, and what differs from what had to become of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from schemas.messages import Outcome, Reply
from tools.demo.queries import Query

RECALL = "recall"  # the pipeline whose rows are beams


@dataclass(frozen=True)
class Answered:
    """One request and its reply; latency_ms from publishing to the reply's arrival; None: none came."""

    query: Query
    reply: Reply | None
    latency_ms: float | None

    @property
    def outcome(self) -> Outcome | None:
        return self.reply.outcome if self.reply else None


@dataclass(frozen=True)
class WorkerSide:
    """What broker and worker say afterwards."""

    dead_letter: int
    model_runs_of_dropped: int
    lag: int


@dataclass(frozen=True)
class Summary:
    """The last line of `boundgen demo --json`; anything else is told by `differences`.

    recall: of the ok ones, those whose sequences are all items. p50_ms and p99_ms are over the requests
    answered ok.
    """

    requests: int
    ok: int
    recall: int
    expired: int
    cancelled: int
    invalid: int
    rejected: int
    dead_letter: int
    model_runs_of_dropped: int
    lag: int
    p50_ms: float
    p99_ms: float


def summarise(answers: Sequence[Answered], worker: WorkerSide) -> Summary:
    """Count the outcomes and take the quantiles of the latencies."""
    counts = Counter(answer.outcome for answer in answers)
    latencies = [
        each.latency_ms for each in answers if each.outcome is Outcome.OK and each.latency_ms is not None
    ]
    return Summary(
        requests=len(answers),
        ok=counts[Outcome.OK],
        recall=sum(each.query.pipeline == RECALL and _is_good(each) for each in answers),
        expired=counts[Outcome.EXPIRED],
        cancelled=counts[Outcome.CANCELLED],
        invalid=counts[Outcome.INVALID],
        rejected=counts[Outcome.REJECTED],
        **asdict(worker),
        p50_ms=quantile(latencies, 50),
        p99_ms=quantile(latencies, 99),
    )


def quantile(values: Sequence[float], percent: int) -> float:
    """The percentile in milliseconds to one decimal; 0.0 where there is no value."""
    if len(values) < 2:
        return round(values[0], 1) if values else 0.0
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 1)


def differences(answers: Sequence[Answered], worker: WorkerSide) -> list[str]:
    """One line for each thing that is not as it must be; empty when the demo succeeded."""
    found = []
    for each in answers:
        if each.outcome is not each.query.fate:
            said = "no reply" if each.reply is None else f"{each.reply.outcome.value} ({each.reply.error})"
            found.append(
                f"{each.query.id} {each.query.text!r:.60}: expected {each.query.fate.value}, got {said}"
            )
        elif each.reply is not None and each.outcome is Outcome.OK:
            found += _wrong_rows(each.query, each.reply)
    malformed = sum(each.query.raw is not None for each in answers)
    if worker.dead_letter != malformed:
        found.append(f"{worker.dead_letter} dead letters, expected {malformed} (the malformed records)")
    if worker.model_runs_of_dropped:
        found.append(f"{worker.model_runs_of_dropped} dropped requests reached the model, expected 0")
    if worker.lag:
        found.append(f"committed lag {worker.lag} after the worker's end, expected 0")
    return found


def _is_good(answer: Answered) -> bool:
    reply = answer.reply
    return reply is not None and reply.outcome is Outcome.OK and not _wrong_rows(answer.query, reply)


def _wrong_rows(query: Query, reply: Reply) -> list[str]:
    if len(reply.results) != len(query.samples):
        return [f"{query.id}: {len(reply.results)} rows for {len(query.samples)} samples"]
    if query.pipeline != RECALL:
        return []
    beams = [beam for row in reply.results for beam in row["beams"]]
    if not beams:
        return [f"{query.id}: found nothing"]
    return [f"{query.id}: {beam['text']!r} is no item" for beam in beams if not beam["item_ids"]]
