"""Where the milliseconds of `bench overhead` go: parts that add up to the mean, the largest one named."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.bench.open_loop import Timed


@dataclass(frozen=True)
class Latency:
    """Milliseconds over all requests of a run."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        return cls(statistics.fmean(values), cuts[49], cuts[98])

    def __str__(self) -> str:
        return f"mean {self.mean:6.2f}  p50 {self.p50:6.2f}  p99 {self.p99:6.2f} ms"

    def rounded(self) -> dict[str, float]:
        return {"mean_ms": round(self.mean, 2), "p50_ms": round(self.p50, 2), "p99_ms": round(self.p99, 2)}


def parts(timed: Sequence[Timed], sleep_ms: float) -> dict[str, float]:
    """Mean milliseconds of each part of a request's way, by its reply's own timing; the sum is the mean.

    `queue` is the wait in the worker apart from tokenizing, `model call` what the node took beyond its sleep,
    `encode` the rest inside the worker until the reply was written, `kafka and client` everything outside:
    the producer's and consumer's hops, publishing the reply, both event loops.
    """
    replies = [each.reply.timing for each in timed]
    queue, tokenize, model, total = (
        statistics.fmean(values)
        for values in zip(*((t.queue_ms, t.tokenize_ms, t.gpu_ms, t.total_ms) for t in replies), strict=True)
    )
    late = statistics.fmean(each.late_ms for each in timed)
    outside = statistics.fmean(each.latency_ms for each in timed) - total - late
    return {
        "sender late": late,
        "kafka and client": outside,
        "tokenize": tokenize,
        "queue": queue,
        "sleep": sleep_ms,
        "model call": model - sleep_ms,
        "encode": total - queue - tokenize - model,
    }


def report_lines(
    worker: Latency, echo: Latency, found: Mapping[str, float], sleep_ms: float, rate: float
) -> list[str]:
    """For a person; the last one says what dominates."""
    added = {name: value for name, value in found.items() if name != "sleep"}
    largest = max(added, key=lambda name: added[name])
    return [
        f"at {rate:g} requests/s, from the moment each was due to its reply:",
        f"  bare echo  {echo}",
        f"  worker     {worker}",
        f"worker beyond the model's {sleep_ms:g} ms: mean {worker.mean - sleep_ms:.2f} ms, of it:",
        *(f"  {name:<18}{value:6.2f} ms" for name, value in added.items()),
        f"what dominates: {largest} ({added[largest]:.2f} of {worker.mean - sleep_ms:.2f} ms)",
    ]
