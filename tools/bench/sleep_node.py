"""A model node that computes nothing and takes a fixed time: the rest of the latency is the worker's.

In a pipeline file: `kind: tools.bench.sleep_node:SleepNode`, in the place of a prefill with label scores.
With `turns` it acts a search out, as a device would run it: a batch begins when the one before it on its lane
ends, whenever threads wake up, if it is there by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local

import torch
from pydantic import Field

from engine.graph import Capacity, Model, Node, NodeContext
from engine.options import Options
from engine.runtime.beam_graph import HEAD_START_S
from engine.values import Scores, Tokens


class SleepOptions(Options):
    """A batch takes `milliseconds`, whatever is in it, on one of `lanes` threads; `ahead` more may wait."""

    milliseconds: float = Field(5.0, ge=0)
    lanes: int = Field(1, ge=1)
    ahead: int = Field(0, ge=0)
    turns: bool = False
    labels: list[str] = Field(["yes", "no"], min_length=1)


class SleepNode(Node):
    """Equal scores for every label. The batch holds what one request of the pipeline may, times eight."""

    Options = SleepOptions
    consumes = (Tokens,)
    produces = Scores
    is_model = True
    model = Model("sleep", "none")

    def __init__(self, options: SleepOptions, context: NodeContext) -> None:
        bounds = context.bounds
        self._seconds = options.milliseconds / 1e3
        self.labels = self._labels = tuple(options.labels)
        batches = options.lanes + options.ahead
        self.capacity = Capacity(8 * bounds.tokens_per_request, 8 * bounds.samples, batches)
        self._pools = [ThreadPoolExecutor(options.lanes, thread_name_prefix=context.name) for _ in range(2)]
        self.executor, self.finisher = self._pools[0], self._pools[1] if options.turns else None
        self._lane = local()

    def run(self, requests: Sequence[tuple[Tokens]]) -> list[Scores]:
        time.sleep(self._seconds)
        return self._scores(requests)

    def begin(self, requests: Sequence[tuple[Tokens]]) -> Callable[[], list[Scores]]:
        """The batch is enqueued now, and begins when the one before it on this lane ends."""
        end_s = max(time.perf_counter(), getattr(self._lane, "end_s", 0.0)) + self._seconds
        self._lane.end_s = end_s
        _sleep_until(end_s - HEAD_START_S - self.lead_s)

        def rest() -> list[Scores]:
            _sleep_until(end_s)
            return self._scores(requests)

        return rest

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=False)

    def _scores(self, requests: Sequence[tuple[Tokens]]) -> list[Scores]:
        return [equal_scores(self._labels, len(tokens.ids)) for (tokens,) in requests]


def _sleep_until(when_s: float) -> None:
    time.sleep(max(0.0, when_s - time.perf_counter()))


def equal_scores(labels: tuple[str, ...], num_samples: int) -> Scores:
    """Logits of zero for every label."""
    logits = torch.zeros(num_samples, len(labels))
    return Scores(labels, logits, logits.logsumexp(-1))
