"""Selection against a full sort, on the logits that break shortcuts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.beam.selection import CHUNK, Rows, best_first, select


def sorted_selection(logits: Tensor, rows: Rows, count: int) -> list[list[tuple[float, int, int]]]:
    """Every candidate, sorted by (score down, parent up, column up)."""
    results = []
    for s in range(len(logits)):
        candidates = []
        for parent in range(logits.shape[1]):
            score = rows.scores[s, parent]
            if rows.closed is not None and rows.closed[s, parent]:
                candidates.append((score.item(), parent, 0))
                continue
            values = ((logits[s, parent] - rows.norms[s, parent]) + score).tolist()
            candidates += [(value, parent, column) for column, value in enumerate(values)]
        candidates.sort(key=lambda each: (-each[0], each[1], each[2]))
        results.append(candidates[:count])
    return results


def check(logits: Tensor, count: int, scores: Tensor | None = None, closed: Tensor | None = None) -> None:
    shape = logits.shape[:2]
    norms = logits.logsumexp(-1).nan_to_num(neginf=0)  # a norm is over more than these columns
    rows = Rows(norms, torch.zeros(shape) if scores is None else scores, closed)
    found = select(logits, rows, count)
    for s, candidates in enumerate(sorted_selection(logits, rows, count)):
        expected = [each for each in candidates if each[0] != -torch.inf]
        triples = zip(
            found.scores[s].tolist(), found.parents[s].tolist(), found.columns[s].tolist(), strict=True
        )
        assert list(triples)[: len(expected)] == expected
        assert bool((found.scores[s, len(expected) :] == -torch.inf).all())


@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 3 * CHUNK + 5), st.integers(1, 40),
    st.sampled_from([1, 2, 7, 1000]), st.booleans(), st.integers(0, 2**20),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_equals_a_full_sort(
    prompts: int, beams: int, columns: int, count: int, levels: int, close: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (prompts, beams, columns), generator=generator).float() / 8
    scores = -torch.randint(levels, (prompts, beams), generator=generator).float() / 4
    scores[torch.rand(scores.shape, generator=generator) < 0.2] = -torch.inf
    closed = torch.rand(scores.shape, generator=generator) < 0.3 if close else None
    check(logits, count, scores, closed)


def test_all_equal() -> None:
    check(torch.zeros(2, 6, 1000), 100)


def test_one_hot_range_of_neighbours() -> None:
    """As semantic ids are: 300 neighbouring tokens far above the rest, across chunk borders."""
    logits = torch.randn(2, 5, 4096, generator=torch.Generator().manual_seed(0))
    logits[:, :, 700:1000] += 20
    check(logits, 100)
    logits[:, :, 700:1000] = 30
    check(logits, 100)


def test_one_beam_takes_all() -> None:
    logits = torch.randn(1, 8, 1000, generator=torch.Generator().manual_seed(0))
    scores = torch.full((1, 8), -50.0)
    scores[0, 5] = 0
    check(logits, 100, scores)


def test_impossible_columns_and_fewer_candidates_than_asked_for() -> None:
    logits = torch.full((2, 2, 200), -torch.inf)
    logits[:, 1, 70:73] = 1
    check(logits, 50, torch.tensor([[0.0, -1.0], [0.0, -torch.inf]]).expand(2, 2).clone())


def test_dead_beam_with_nan_does_not_show() -> None:
    logits = torch.zeros(1, 2, 10)
    logits[0, 1] = torch.nan
    rows = Rows(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]]), None)
    found = select(logits, rows, 15)
    assert found.parents[0, :10].tolist() == [0] * 10
    assert bool((found.scores[0, 10:] == -torch.inf).all())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_zeros_are_equal(sign: float) -> None:
    found = best_first(torch.tensor([[-0.0 * sign, 0.0 * sign, -0.0]]), 3)
    assert found.index.tolist() == [[0, 1, 2]]


def test_order_holds_over_all_magnitudes() -> None:
    values = torch.tensor([[3e38, 1e-40, -1e-40, -3e38, -torch.inf, 1.0, -1.0, 0.0]])
    found = best_first(values, 8)
    assert found.scores.tolist() == [sorted(values[0].tolist(), reverse=True)]
