"""Beam node: one fixed beam search over the prompts of a batch; engine/beam/README.md says what is found.

Runs on a lane's thread of the artifact. A request may ask for less than the pipeline's width with its options
`width` and `top_n`; a request's own NaN or infinity fails that request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.beam.catalogue import ItemCatalogue
from engine.beam.frontier import Frontier
from engine.beam.items import ItemRules
from engine.beam.legal import LegalProvider, LegalSet, LegalTensors
from engine.beam.search import SearchPlan
from engine.demand import Demand
from engine.errors import InputError, NodeError
from engine.graph import Capacity, Model, Node, NodeContext
from engine.nodes.beam_options import (
    Asked,
    BeamOptions,
    check_bounds,
    check_slices,
    find_end_tokens,
    read_asked,
)
from engine.nodes.tokens_of_model import TokenCheck
from engine.packed import PackedBatch, pack
from engine.runtime.beam_buckets import SearchSizes
from engine.runtime.legal_slots import LegalSlots, StaleLegalError
from engine.values import Beams, SampleBeams, Tokens


class Beam(Node):
    """Tokens -> Beams."""

    Options = BeamOptions
    consumes = (Tokens,)
    produces = Beams
    is_model = True

    def __init__(self, options: BeamOptions, context: NodeContext) -> None:
        opened = context.artifacts.get(options.artifact)
        self._check_tokens = TokenCheck(options.artifact, opened, context)
        self._lanes = context.artifacts.get_beams(options.artifact)
        check_bounds(options, context, self._lanes)
        self._width, self._by_length = options.width, options.normalize == "length"
        vocab_size = int(opened.artifact.manifest.architecture["vocab_size"])
        ends = find_end_tokens(options, opened, vocab_size)
        self._plan = SearchPlan(options.steps, ends, check_slices(options, vocab_size))
        self._tokenizer = None
        if opened.vocabulary is not None:
            self._tokenizer = opened.artifact.tokenizer.backend_tokenizer
        self._catalogue: ItemCatalogue | None = None
        self._legal: LegalProvider | None = None
        self._slots: LegalSlots | None = None
        if options.items is not None:
            self._slots = self._lanes.make_slots()
            rules = ItemRules(options.steps + 1, vocab_size, ends or (), opened.vocabulary)
            self._catalogue = ItemCatalogue(context.directory / options.items, rules, place=self._place)
            self._legal = self._current_items
        self.executor, self.finisher = opened.lanes.executor, self._lanes.finisher
        self.model = Model(opened.artifact.name, opened.artifact.digest)
        built, longest = opened.artifact.bounds, context.bounds.tokens_per_sample
        prompts = min(built.samples, self._lanes.bounds.prompts)
        # Lanes that tell their turn get the next batch in time; others need one that waits for them.
        batches = opened.lanes.num_lanes + (self.finisher is None)
        self.capacity = Capacity(built.tokens, prompts, batches)
        sizes = SearchSizes(
            options.width, prompts, min(longest, built.tokens_per_sample), built.tokens, options.steps
        )
        self._lanes.prepare(self._plan, sizes, self._slots)

    def check_options(self, options: Mapping[str, object]) -> None:
        self._asked(options)

    def run(self, requests: Sequence[tuple[Any, ...]]) -> Sequence[object]:
        return self.begin(requests)()

    def begin(self, requests: Sequence[tuple[Any, ...]]) -> Callable[[], Sequence[object]]:
        results: list[object] = [self._check_tokens(tokens) for (tokens,) in requests]
        asked: dict[int, Asked] = {}
        for index, (tokens,) in enumerate(requests):
            try:
                if results[index] is None:
                    asked[index] = self._asked(tokens.options)
            except InputError as error:
                results[index] = error
        if not asked:
            return lambda: results
        tokens = [requests[index][0] for index in asked]
        widths = [each.width for index, each in asked.items() for _ in requests[index][0].ids]
        legal, finish = self._begin(pack([ids for each in tokens for ids in each.ids]), widths)

        def rest() -> Sequence[object]:
            found = finish()
            samples, failed, start = self._samples(found), found.failed.tolist(), 0
            for index, each in zip(asked, tokens, strict=True):
                stop = start + len(each.ids)
                if any(failed[start:stop]):
                    results[index] = NodeError("the model gave NaN or infinity", "model_output")
                else:
                    results[index] = self._value(samples[start:stop], legal, asked[index].top_n)
                start = stop
            return results

        return rest

    def demand(self, inputs: tuple[Any, ...]) -> Demand:
        (tokens,) = inputs
        rows = len(tokens.ids) * self._asked(tokens.options).width * self._plan.steps
        return Demand(tokens.num_tokens, len(tokens.ids), rows)

    def counters(self) -> Mapping[str, int]:
        return {} if self._catalogue is None else self._catalogue.counters()

    def _begin(
        self, packed: PackedBatch, widths: list[int]
    ) -> tuple[LegalSet | None, Callable[[], Frontier]]:
        """What waits for the results, and the one version of the items that is searched."""
        while True:
            legal = None if self._legal is None else self._legal()
            try:
                tensors = None if legal is None else legal.tensors
                return legal, self._lanes.begin(packed, widths, self._plan, tensors, self.lead_s)
            except StaleLegalError:  # replaced since: there is a newer one
                continue

    def close(self) -> None:
        if self._catalogue is not None:
            self._catalogue.close()
        self._lanes.release(self._slots)

    def _asked(self, options: Mapping[str, object]) -> Asked:
        return read_asked(options, self._width)

    def _value(self, beams: Sequence[SampleBeams], legal: LegalSet | None, top_n: int | None) -> Beams:
        return Beams(tuple(beams), legal, None if self._tokenizer is None else self._decode, top_n)

    def _samples(self, found: Frontier) -> list[SampleBeams]:
        """The live beams of each prompt: dead ones come last. Columns are cut into prompts at once, as this
        holds the interpreter."""
        width = found.scores.shape[1]
        closed = torch.zeros_like(found.scores, dtype=torch.bool) if found.closed is None else found.closed
        given = (found.tokens, found.lengths, found.scores, closed, found.nodes)
        by_prompt = zip(*(x.unbind() for x in given if x is not None), strict=True)
        # By numpy: three operations of torch take four times as long, first of all after a pause.
        counts = np.add.reduce(np.isfinite(found.scores.numpy()), axis=1, dtype=np.int64).tolist()
        samples = []
        for columns, count in zip(by_prompt, counts, strict=True):
            live = columns if count == width else tuple(x[:count] for x in columns)
            if self._by_length:
                live = _by_mean(*live)
            token_ids, lengths, scores, finished, *leaves = live
            samples.append(SampleBeams(token_ids, lengths, scores, finished, leaves[0] if leaves else None))
        return samples

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        assert self._tokenizer is not None
        texts: list[str] = self._tokenizer.decode_batch(
            [list(ids) for ids in sequences], skip_special_tokens=False
        )
        return texts

    def _current_items(self) -> LegalSet:
        assert self._catalogue is not None
        return self._catalogue.current

    def _place(self, tensors: LegalTensors) -> LegalTensors:
        if self._slots is not None:
            served = None if self._catalogue is None else self._current_items().tensors
            return self._slots.place(tensors, served)
        device = self._lanes.device
        return LegalTensors(
            tensors.offsets.to(device), tensors.tokens.to(device), tensors.children.to(device),
            tensors.max_degree,
        )  # fmt: skip


def _by_mean(token_ids: Tensor, lengths: Tensor, scores: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    """One prompt's columns by score a token, which takes the place of the score."""
    means = scores / lengths
    order = means.argsort(descending=True, stable=True)
    return tuple(column[order] for column in (token_ids, lengths, means, *more))
