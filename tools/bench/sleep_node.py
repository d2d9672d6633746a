"""A model node that computes nothing and takes a fixed time: the rest of the latency is the worker's.

In a pipeline file: `kind: tools.bench.sleep_node:SleepNode`, in the place of a prefill with label scores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from pydantic import Field

from engine.graph import Capacity, Model, Node, NodeContext
from engine.options import Options
from engine.values import Scores, Tokens


class SleepOptions(Options):
    """A batch takes `milliseconds`, whatever is in it, on one of `lanes` threads."""

    milliseconds: float = Field(5.0, ge=0)
    lanes: int = Field(1, ge=1)
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
        self.capacity = Capacity(8 * bounds.tokens_per_request, 8 * bounds.samples, options.lanes)
        self.executor = ThreadPoolExecutor(options.lanes, thread_name_prefix=context.name)

    def run(self, requests: Sequence[tuple[Tokens]]) -> list[Scores]:
        time.sleep(self._seconds)
        return [equal_scores(self._labels, len(tokens.ids)) for (tokens,) in requests]

    def close(self) -> None:
        assert isinstance(self.executor, ThreadPoolExecutor)
        self.executor.shutdown(wait=False)


def equal_scores(labels: tuple[str, ...], num_samples: int) -> Scores:
    """Logits of zero for every label."""
    logits = torch.zeros(num_samples, len(labels))
    return Scores(labels, logits, logits.logsumexp(-1))
