"""What it is worth to form a batch at its lane's turn, not one batch ahead: the worker's queue and slots in
front of a model that sleeps, without Kafka and Redis.

    python -m tools.bench.late_batches --sleep-ms 14 --share 0.7

Arrivals are a Poisson process, the same for both ways, which take turns; latency counts from when a request
was due until it is settled, medians of rounds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition

from engine.graph import Node, Stage
from engine.pipeline import ArtifactStore, Pipeline, PipelineConfig, Prepared, Result
from engine.values import Samples, Tokens
from schemas.messages import Outcome, Request, Sample
from tools.bench.overhead_report import Latency
from tools.bench.overhead_run import SLEEPER
from tools.bench.provenance import provenance
from tools.bench.script import run_script, say
from tools.errors import UserError
from worker.deadlines import Deadline
from worker.execution import Execution, ExecutionRules, Exits
from worker.metrics import PipelineMetrics, WorkerMetrics
from worker.offsets import Place
from worker.records import Verdict, Work
from worker.redis_deadlines import DeadlineStore
from worker.window import Busy

PATIENCE_S = 10.0
REQUESTS_A_BATCH = 16  # of one sample each: eight times the pipeline's samples
PLACE = Place(TopicPartition("bench", 0), 0, 1)
RECORD = ConsumerRecord("bench", 0, 0, 0, 0, None, b"", None, -1, -1, ())
REQUEST = Request(id="bench", pipeline="sleep", samples=(Sample(token_ids=(1,)),))


class Given(Node):
    """Samples of token ids -> Tokens."""

    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Tokens

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [Tokens(tuple(tuple(x.token_ids) for x in samples.samples)) for (samples,) in requests]


class Ahead(Pipeline):
    """Tells no turns: a slot is free when results are there, and one more batch waits meanwhile."""

    def submit(
        self, batch: Sequence[Prepared], on_turn: Callable[[], None] | None = None
    ) -> Future[list[Result]]:
        del on_turn
        return super().submit(batch)


WAYS: dict[str, type[Pipeline]] = {"one ahead": Ahead, "at its turn": Pipeline}


@dataclass(frozen=True)
class Arrivals:
    """`share` of what full batches would serve."""

    sleep_ms: float
    share: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.share * REQUESTS_A_BATCH * 1e3 / self.sleep_ms

    def times(self, seed: int) -> list[float]:
        """Seconds from the beginning."""
        draws, due, found = random.Random(seed), 0.0, []
        while (due := due + draws.expovariate(self.rate)) < self.seconds:
            found.append(due)
        return found


async def serve(way: str, sleep_ms: float, times: Sequence[float]) -> tuple[list[float], float]:
    """Milliseconds of each request, and requests a batch; UserError unless all are ok."""
    acted = {"milliseconds": sleep_ms, "turns": True, "ahead": int(WAYS[way] is Ahead)}
    nodes: dict[str, Any] = {
        "given": {"kind": "tools.bench.late_batches:Given"},
        "model": {"kind": SLEEPER, "inputs": ["given"], **acted},
        "answer": {"kind": "encoder", "inputs": ["model"], "output": "softmax"},
    }
    bounds = {"samples": REQUESTS_A_BATCH // 8, "tokens_per_sample": 4, "tokens_per_request": 64}
    config = PipelineConfig.model_validate({"name": "sleep", "bounds": bounds, "nodes": nodes})
    ended: dict[int, float] = {}
    busy, store, metrics = Busy(), DeadlineStore(None), WorkerMetrics()

    bad: list[object] = []  # told at the end: nobody waits for who calls these

    async def settle(work: Work, verdict: Verdict) -> None:
        ended[work.arrival] = time.perf_counter()
        if verdict.outcome is not Outcome.OK:
            bad.append(verdict)
        busy.end()

    with WAYS[way].open(config, ArtifactStore({})) as pipeline:
        exits = Exits(settle, lambda work: None, lambda work: None, bad.append)
        execution = Execution(
            pipeline, store, busy, PipelineMetrics(metrics, "sleep"), ExecutionRules(), exits
        )
        begin = time.perf_counter()
        for number, due in enumerate(times):
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            work = Work(PLACE, RECORD, number, store.clock.now_ms(), time.perf_counter())
            work.request_id, work.request, work.deadline = REQUEST.id, REQUEST, Deadline(None, 2**60)
            work.prepared = pipeline.prepare(REQUEST.samples)
            execution.push(work)
        if not await busy.none(PATIENCE_S) or bad:
            raise UserError(f"{len(times) - len(ended)} of {len(times)} requests got no answer; {bad[:1]}")
    batches = metrics.registry.get_sample_value("boundgen_batches_total", {"pipeline": "sleep"})
    assert batches, "all were answered"
    return [(ended[number] - begin - due) * 1e3 for number, due in enumerate(times)], len(times) / batches


def _median(rounds: Sequence[Latency]) -> Latency:
    """Of each number: a pause of the machine in one round is no part of it."""
    columns = zip(*((each.mean, each.p50, each.p99) for each in rounds), strict=True)
    return Latency(*map(statistics.median, columns))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sleep-ms", type=float, default=14.0, help="what a batch takes")
    parser.add_argument("--share", type=float, default=0.7, help="of what full batches would serve")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args(arguments)
    arrivals = Arrivals(asked.sleep_ms, asked.share, asked.seconds)
    rounds: dict[str, list[Latency]] = {way: [] for way in WAYS}
    sizes: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(asked.rounds):
        for way in WAYS:
            found, size = asyncio.run(serve(way, arrivals.sleep_ms, arrivals.times(seed)))
            rounds[way].append(Latency.of(found))
            sizes[way].append(size)
    latencies = {way: _median(each) for way, each in rounds.items()}
    say(f"{arrivals.rate:.0f} requests/s, {asked.sleep_ms:g} ms a batch of at most {REQUESTS_A_BATCH}:")
    for way, each in latencies.items():
        say(f"  {way:<12}{each}, {statistics.fmean(sizes[way]):.1f} requests a batch")
    pairs = zip(*rounds.values(), strict=True)
    ratio = round(statistics.median(first.mean / second.mean for first, second in pairs), 2)
    say(f"mean latency, one ahead / at its turn: {ratio}")
    told = {"ratio": ratio, **{way: found.rounded() for way, found in latencies.items()}}
    say(json.dumps({"benchmark": "late batches", **vars(asked), **told, **provenance("cpu")}))


if __name__ == "__main__":
    run_script(main)
