"""Whole searches whose head is in 8 bits: the exact head's winners, but for what the pool leaves out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.beam.frontier import Frontier, Rules
from engine.beam.head_weight import HeadWeight, narrow_head
from engine.beam.search import Head, SearchPlan, search
from engine.beam.selection import Pool
from engine.beam.trie import compile_trie
from table_models import Found, TableModel, TokenIds, found, random_logits

PROMPTS: list[TokenIds] = [(1, 2), (3,), (0, 0, 4)]
HIDDEN, VOCABULARY, STEPS = 32, 96, 3
EVERYTHING = Pool(0, 20_000, 20_000)
Heads = Callable[[Pool | None], HeadWeight]


@pytest.fixture(scope="module")
def heads() -> Heads:
    weight = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16() / 3
    narrow = narrow_head(weight)
    assert narrow is not None
    return lambda pool: HeadWeight(weight, *narrow, pool)


def run(
    head: Head, width: int, widths: Sequence[int] = (), ends: Sequence[int] | None = None, legal: Any = None
) -> list[Found]:
    table = random_logits(HIDDEN)

    def hidden(ids: TokenIds) -> Tensor:
        return table(ids).bfloat16().float()

    limits = torch.tensor(widths or [width] * len(PROMPTS))
    rules = Rules(width, limits, None if ends is None else torch.tensor(ends), legal)
    beams: Frontier = search(TableModel(PROMPTS, width, STEPS, hidden), head, rules, STEPS)
    assert not beams.failed.any()
    return [found(beams, prompt) for prompt in range(len(PROMPTS))]


def exact(heads: Heads, plan: SearchPlan, *given: Any, **more: Any) -> list[Found]:
    return run(Head(heads(None).weight.float(), plan.slices), *given, **more)


def shared(one: list[Found], other: list[Found]) -> float:
    same = sum(len(set(a.tokens) & set(b.tokens)) for a, b in zip(one, other, strict=True))
    return same / sum(len(each.tokens) for each in one)


SLICES = ((0, 96), (5, 61), (16, 32), (90, 96))
LEGAL = compile_trie(
    torch.randint(VOCABULARY, (300, STEPS + 1), generator=torch.Generator().manual_seed(9)).int().numpy(),
    VOCABULARY,
)[0].tensors()


@pytest.mark.parametrize("ends", [None, range(0, VOCABULARY, 5)])
@pytest.mark.parametrize("slices", [None, SLICES])
def test_a_pool_of_everything_is_the_exact_search(
    slices: Any, ends: Sequence[int] | None, heads: Heads
) -> None:
    """More than there is: slices of fewer continuations than beams, requests of their own widths."""
    plan, given = SearchPlan(STEPS, None, slices), {"widths": (8, 3, 1), "ends": ends}
    got = run(heads(EVERYTHING).of(plan), 8, **given)  # type: ignore[arg-type]
    for mine, theirs in zip(got, exact(heads, plan, 8, **given), strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.closed == theirs.closed
        assert mine.scores == pytest.approx(theirs.scores, abs=1e-4)


@pytest.mark.parametrize("ends", [None, range(0, VOCABULARY, 5)])
def test_legal_sequences(ends: Sequence[int] | None, heads: Heads) -> None:
    """Norms keep what 8 bits did to tokens that are not legal; all else is exact."""
    plan, given = SearchPlan(STEPS), {"widths": (8, 3, 1), "ends": ends, "legal": LEGAL}
    want = exact(heads, plan, 8, **given)
    mended = run(heads(EVERYTHING).of(plan), 8, **given)  # type: ignore[arg-type]
    assert shared(want, mended) > 0.85
    for mine, theirs in zip(mended, want, strict=True):
        assert len(mine.tokens) == len(theirs.tokens)
        known = dict(zip(theirs.tokens, zip(theirs.nodes, theirs.scores, strict=True), strict=True))
        for tokens, node, score in zip(mine.tokens, mine.nodes, mine.scores, strict=True):
            if tokens in known:
                assert known[tokens] == (node, pytest.approx(score, abs=0.5))


@pytest.mark.parametrize("width", [4, 30, 60])
def test_it_keeps_more_of_the_winners(width: int, heads: Heads) -> None:
    plan = SearchPlan(STEPS)
    want = exact(heads, plan, width)
    mended, rough = (shared(want, run(heads(pool).of(plan), width)) for pool in (Pool(), None))
    assert mended > 0.97
    assert rough <= 0.92


@pytest.mark.parametrize("pool", [Pool(), Pool(2, 3), Pool(2, 3, 1)])
def test_what_neighbours_ask_for_does_not_show(pool: Pool, heads: Heads) -> None:
    """Bit for bit: the pool is that of a request's own width."""
    head = heads(pool).of(SearchPlan(STEPS))
    alone, beside = (run(head, width, widths=(4, 4, 2)) for width in (4, 30))
    assert alone == beside
