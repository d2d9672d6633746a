"""`bench engine` proper: the same requests through boundgen's engine and through a peer, in turns.

Both run one request at a time with the same number of threads on the same weights; both are warmed up with
every request first (so that no shape is new), then take rounds in turns, so that a slower moment of the
machine meets both. Times are medians over the rounds; the results are compared before any time counts.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.pipeline import Answer, Pipeline
from tools.bench.peer import Run
from tools.bench.workload import Request
from tools.errors import UserError

TOLERANCE = {
    torch.float32: 1e-3,
    torch.bfloat16: 0.25,
}  # of a label's log-probability; two bfloat16 models differ


@dataclass(frozen=True)
class Timed:
    """One side of the comparison: seconds of each round over all requests."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def engine_run(pipeline: Pipeline, labels: tuple[str, ...]) -> Run:
    """Log-probabilities of a request's labels through prepare and submit, as a worker would."""

    def run(request: Request) -> Tensor:
        (result,) = pipeline.submit([pipeline.prepare(request)]).result()
        if not isinstance(result, Answer):
            raise UserError(f"the engine did not answer: {result}")
        return torch.tensor([[scores_of(row)[label] for label in labels] for row in result.rows])

    return run


def scores_of(row: dict[str, object]) -> dict[str, float]:
    """The numbers of a row of an encoder with `output: logprobs`."""
    scores = row["scores"]
    assert isinstance(scores, dict)
    return scores


def largest_difference(ours: Run, peer: Run, requests: list[Request]) -> float:
    """Over all requests, samples and labels; also warms both up."""
    return max(float((ours(request) - peer(request)).abs().max()) for request in requests)


def faster(ways: dict[str, Run], requests: list[Request]) -> tuple[str, Run]:
    """The peer's own best way on these requests, by one round each after a warm-up."""
    seconds = {}
    for name, run in ways.items():
        run(requests[0])
        seconds[name] = time_round(run, requests)
    best = min(seconds, key=lambda name: seconds[name])
    return best, ways[best]


def time_round(run: Run, requests: list[Request]) -> float:
    """Seconds for all requests, one after the other; every result is on the CPU when it returns."""
    start = time.perf_counter()
    for request in requests:
        run(request)
    return time.perf_counter() - start


def take_turns(sides: dict[str, Run], requests: list[Request], rounds: int) -> list[Timed]:
    """`rounds` rounds of every side in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            seconds[name].append(time_round(run, requests))
    return [Timed(name, tuple(each)) for name, each in seconds.items()]
