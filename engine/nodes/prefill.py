"""Prefill node: one run of a model over the packed samples of a batch, then its head.

Runs on a lane's thread of the artifact. Batches within `capacity` are one run; a request's own NaN or
infinity fails that request alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import ConfigDict
from torch import Tensor

from engine.demand import Demand
from engine.errors import ConfigError, NodeError
from engine.graph import Capacity, Counted, Model, Node, NodeContext
from engine.heads.embedding import EmbeddingHead
from engine.heads.head import Head
from engine.heads.label_scores import LabelScores
from engine.heads.mlp import MlpHead
from engine.heads.score import ScoreHead
from engine.heads.top_k import TopKHead
from engine.nodes.tokens_of_model import TokenCheck
from engine.options import Options, read_options, suggest
from engine.prefixes import EIGHT_BITS, NOTHING_SAVED, Prefixes, Rules
from engine.store import OpenedArtifact
from engine.values import Tokens

logger = logging.getLogger(__name__)

HEADS: dict[str, type[Head]] = {
    "label_scores": LabelScores,
    "top_k": TopKHead,
    "embedding": EmbeddingHead,
    "mlp": MlpHead,
    "score": ScoreHead,
}


class PrefillOptions(Options):
    """Settings beside these belong to the head."""

    model_config = ConfigDict(extra="allow")

    artifact: str
    head: str
    prefixes: Literal["auto", "off"] = (
        "auto"  # compute once what samples share, where it pays (engine.prefixes)
    )


class Prefill(Node):
    """Tokens -> what the head gives."""

    Options = PrefillOptions
    consumes = (Tokens,)
    is_model = True

    def __init__(self, options: PrefillOptions, context: NodeContext) -> None:
        head, settings = read_head(options)
        opened = context.artifacts.get(options.artifact)
        self._check = TokenCheck(options.artifact, opened, context)
        self._lanes = opened.lanes
        self._head = head(settings, opened.artifact, context.directory)
        self._lanes.prepare(self._head.compute)
        self._prefixes = _prefixes(options, opened, context)
        self.produces = head.produces
        self.labels = self._head.labels
        self.executor = opened.lanes.executor
        self.model = Model(opened.artifact.name, opened.artifact.digest)
        built = opened.artifact.bounds
        # One more than lanes: a lane finds its next batch ready instead of waiting for encoder and worker.
        self.capacity = Capacity(built.tokens, built.samples, opened.lanes.num_lanes + 1)
        self.cost = opened.lanes.cost
        self._bounds = built

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        results: list[object] = [self._check(tokens) for (tokens,) in requests]
        good = [index for index, error in enumerate(results) if error is None]
        if good:
            samples = [requests[index][0].ids for index in good]
            packed, saved = self._prefixes.pack(samples)
            columns = self._lanes.run(packed, self._head.compute)
            start = 0
            for index, each, spared in zip(good, samples, saved, strict=True):
                stop = start + len(each)
                value = self._value(tuple(column[start:stop] for column in columns))
                results[index] = Counted(value, spared) if spared != NOTHING_SAVED else value
                start = stop
        return results

    def demand(self, inputs: tuple[Any, ...]) -> Demand:
        return self._prefixes.demand(inputs[0].ids, self._bounds)

    def _value(self, columns: tuple[Tensor, ...]) -> object:
        for column in columns:
            if column.is_floating_point() and not bool(torch.isfinite(column).all()):
                return NodeError("the model gave NaN or infinity", "model_output")
        return self._head.value(columns)


def read_head(options: PrefillOptions) -> tuple[type[Head], Options]:
    """Which head it is, and its own settings; ConfigError for an unknown one."""
    if options.head not in HEADS:
        raise ConfigError("head", options.head, "no such head; " + suggest(options.head, HEADS))
    head = HEADS[options.head]
    return head, read_options(head.Options, options.model_extra or {})


def _prefixes(options: PrefillOptions, opened: OpenedArtifact, context: NodeContext) -> Prefixes:
    """What the node shares; computes its tokenizer's constant prefix where that is long enough, or where the
    artifact's 8-bit matrices need it."""
    if options.prefixes == "off":
        if opened.artifact.quantises:
            logger.warning(
                "artifact %r: prefixes = 'off', so the first tokens of every prompt are in 8 bits too; its "
                "accuracy was measured with what its prompts begin with in full precision",
                options.artifact,
            )
        return Prefixes()
    if not opened.lanes.takes_prefixes:
        logger.info(
            "artifact %r: its kernels take no prefixes, every prompt is computed whole", options.artifact
        )
        return Prefixes()
    rules = EIGHT_BITS if opened.artifact.quantises else Rules()
    (source,) = context.inputs.values()
    longest = min(context.bounds.tokens_per_sample - 1, opened.lanes.most_constant)
    ids = source.constant_prefix[:longest]
    constant = opened.artifact.constant_prefix(ids) if len(ids) >= rules.min_constant else None
    if constant is None and opened.artifact.quantises:
        logger.warning(
            "artifact %r: its prompts here begin with nothing that stays the same, so their first tokens are "
            "in 8 bits; measure such texts: boundgen doctor ARTIFACT TEXTS",
            options.artifact,
        )
    return Prefixes(constant, rules, opened.lanes.most_segments)
