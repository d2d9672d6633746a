"""How many of float32's winners a finished artifact's search finds, on texts of a pipeline that searches.

Seconds a prompt on a CPU: float32 is the emulation's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from engine.beam.bounds import BeamBounds
from engine.beam.head_weight import HeadWeight
from engine.beam.search import SearchPlan
from engine.packed import pack
from engine.quant.emulation import EmulatedDecoder
from engine.quant.laboratory import SEARCHES, Model, search_from
from engine.quant.ranks import Ranks, Winners, compare_ranks
from engine.quant.texts import Text
from engine.runtime.beam_lanes import BeamLanes

Search = Callable[[Sequence[Sequence[int]], int, int], tuple[Tensor, Tensor]]
"""Prompts, width and steps -> tokens int64[S, width, steps + 1] and scores [S, width]."""


def searcher(lanes: BeamLanes) -> Search:
    """Over an artifact's lanes; nothing ends early."""

    def run(prompts: Sequence[Sequence[int]], width: int, steps: int) -> tuple[Tensor, Tensor]:
        wanted = pack(prompts), [width] * len(prompts), SearchPlan(steps)
        found = lanes.pool.executor.submit(lanes.search, *wanted).result()
        return found.tokens[:, :width], found.scores[:, :width]

    return run


def count_winners(model: Model, texts: Sequence[Text], run: Search, bounds: BeamBounds) -> Ranks | None:
    """Of the first few texts that are searched from, as far as their pipeline and the bounds go; None where
    none is."""
    prompts = [text for text in texts if text.search is not None][:SEARCHES]
    if not prompts:
        return None
    decoder, head = EmulatedDecoder(model.architecture, model.weights), HeadWeight(model.head)
    expected, found = [], []
    for text in prompts:
        assert text.search is not None
        width, steps = min(text.search[0], bounds.width), min(text.search[1], bounds.steps)
        theirs = search_from(decoder, head, replace(text, search=(width, steps)), {})
        width = min(width, len(theirs.tokens))
        expected.append(Winners(theirs.tokens[:width], theirs.scores[:width]))
        tokens, scores = run([text.ids], width, len(theirs.tokens[0]) - 1)
        found.append(Winners([tuple(row) for row in tokens[0].tolist()], scores[0].tolist()))
    return compare_ranks(expected, found)
