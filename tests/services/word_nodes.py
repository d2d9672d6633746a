"""A pipeline of a user's own nodes, without an artifact: word lengths, their sum as a model, rows of it.

Total notes its launches and may wait at a barrier; fixture `fresh_records` of tests/engine forgets both.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from engine.errors import NodeError
from engine.graph import Capacity, Node, NodeContext, Stage
from engine.options import Options
from engine.pipeline import Pipeline, PipelineConfig
from engine.values import Rows, Samples, Scores, Tokens

BOUNDS = {"samples": 4, "tokens_per_sample": 8, "tokens_per_request": 16}


class Words(Node):
    """Token ids: the lengths of the words."""

    stage = Stage.PREPARE
    consumes = (Samples,)
    produces = Tokens

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [
            Tokens(tuple(tuple(map(len, sample.text.split())) for sample in samples.samples))
            for (samples,) in requests
        ]


class Total(Node):
    """A model: its only label's logit is the sum of the sample's token ids. Knows some bad ids."""

    class Options(Options):
        barrier: str = ""

    consumes = (Tokens,)
    produces = Scores
    is_model = True
    barriers: ClassVar[dict[str, threading.Barrier]] = {}
    launches: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, options: Options, context: NodeContext) -> None:
        self.name = context.name
        self.labels = ("total",)
        self.barrier = self.barriers.get(options.barrier)
        self.capacity = Capacity(tokens=64, samples=16, batches=2)

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        self.launches.append((self.name, len(requests)))
        if self.barrier:
            self.barrier.wait(timeout=20)
        return [self._score(tokens) for (tokens,) in requests]

    def _score(self, tokens: Tokens) -> object:
        if any(13 in sample for sample in tokens.ids):
            return NodeError("thirteen", "model_output")
        if any(14 in sample for sample in tokens.ids):
            raise RuntimeError("fourteen")
        logits = torch.tensor([[float(sum(sample))] for sample in tokens.ids])
        return Scores(("total",), logits, torch.zeros(len(logits)))


class Collect(Node):
    """Rows of every input, by its name."""

    consumes = (Scores,)
    produces = Rows
    max_inputs = 4

    def __init__(self, options: Options, context: NodeContext) -> None:
        self.names = tuple(context.inputs)

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return [self._rows(inputs) for inputs in requests]

    def _rows(self, inputs: tuple[Scores, ...]) -> Rows:
        columns = [scores.logits[:, 0].tolist() for scores in inputs]
        return Rows(tuple(dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)))


def config(**nodes: dict[str, object]) -> PipelineConfig:
    return PipelineConfig.model_validate({"name": "test", "bounds": BOUNDS, "nodes": nodes})


ONE = {
    "words": {"kind": f"{__name__}:Words"},
    "total": {"kind": f"{__name__}:Total", "inputs": ["words"]},
    "rows": {"kind": f"{__name__}:Collect", "inputs": ["total"]},
}


def results(pipeline: Pipeline, sample: Any, *texts: str) -> list[object]:
    batch = [pipeline.prepare([sample(text)]) for text in texts]
    return list(pipeline.submit(batch).result(timeout=20))
