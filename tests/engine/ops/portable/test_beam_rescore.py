"""beam_rescore on a CPU against every continuation looked at one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.beam.selection import Exact, Pool
from engine.ops.portable.beam_rescore import beam_rescore
from engine.ops.portable.beam_select import beam_select

NEVER = float("-inf")
EVERYTHING = Pool(0, 1000, 1000)
Tree = tuple[Tensor, Tensor, Tensor]


def integers(generator: torch.Generator, *size: int) -> Tensor:
    """Products of such rows are exact in any order, and tie often."""
    return torch.randint(-2, 3, size, generator=generator).bfloat16()


def one_by_one(
    rough: Tensor, exact: Tensor, scores: list[float], closed: list[bool], tokens: list[list[int]], pool: int
) -> list[tuple[float, int, int]]:
    """One request: rough and exact [B, C], the columns of each beam's continuations in order -> all of its
    pool, best first."""
    norms = [float(torch.logsumexp(row, 0)) for row in rough]
    pairs = []
    for beam, score in enumerate(scores):
        if score == NEVER:
            continue
        if closed[beam]:
            pairs.append((score, beam, 0))
            continue
        pairs += [
            ((float(rough[beam, token]) - norms[beam]) + score, beam, column)
            for column, token in enumerate(tokens[beam])
        ]
    pairs = sorted(pairs, key=lambda each: (-each[0], each[1], each[2]))[:pool]
    found = []
    for beam, score in enumerate(scores):
        mine = [column for _, parent, column in pairs if parent == beam]
        if closed[beam]:
            found += [(score, beam, 0)] if mine else []
            continue
        x = [float(exact[beam, tokens[beam][column]]) for column in mine]
        gone = sum(math.exp(float(rough[beam, tokens[beam][column]]) - norms[beam]) for column in mine)
        norm = norms[beam] + math.log(1 - gone + sum(math.exp(each - norms[beam]) for each in x))
        found += [(each - norm + score, beam, column) for each, column in zip(x, mine, strict=True)]
    return sorted(found, key=lambda each: (-each[0], each[1], each[2]))


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("first", [0, 20])
def test_the_pool_is_scored_as_its_formula_says(bounded: bool, first: int) -> None:
    generator = torch.Generator().manual_seed(first + bounded)
    requests, beams, columns, count = 3, 5, 90, 6
    hidden, rows = (torch.randn(*size, 16, generator=generator).bfloat16() for size in ((3, 5), (columns,)))
    exact = torch.einsum("sbh,vh->sbv", hidden.float(), rows.float())
    rough = exact + torch.randn(exact.shape, generator=generator) * 0.3
    scores = -torch.rand(requests, beams, generator=generator)
    scores[0, 2] = NEVER
    closed = torch.rand(requests, beams, generator=generator) < 0.3
    legal: Tree | None = None
    degrees = [columns] * beams
    tokens = [[list(range(columns))] * beams] * requests
    if bounded:
        degrees = [40, 0, 1, 25, 60]
        offsets = torch.tensor([0, *degrees]).cumsum(0).to(torch.int32)
        drawn = [first + torch.randperm(columns, generator=generator)[:n].sort().values for n in degrees]
        nodes = torch.randint(len(degrees), (requests, beams), generator=generator)
        legal = nodes, offsets, torch.cat(drawn).to(torch.int32)
        tokens = [[(drawn[node] - first).tolist() for node in mine] for mine in nodes.tolist()]
    widths, wanted = torch.tensor([6, 2, 4]), Pool(3, 2, 3)
    more = {"closed": closed, "legal": legal, "max_degree": max(degrees), "first_token": first}
    pool = beam_select(rough, scores, wanted.size(count, beams, max(degrees)), **more)  # type: ignore[arg-type]
    got = beam_rescore(pool, Exact(hidden, rows, wanted), scores, widths, count, **more)  # type: ignore[arg-type]
    assert not got.failed.any()
    for request in range(requests):
        want = one_by_one(
            rough[request], exact[request], scores[request].tolist(), closed[request].tolist(),
            tokens[request], wanted.size(int(widths[request]), beams, max(degrees)),
        )[:count]  # fmt: skip
        live = len(want)
        found = zip(got.parents[request].tolist(), got.columns[request].tolist(), strict=True)
        assert list(found)[:live] == [each[1:] for each in want]
        expected = torch.tensor([each[0] for each in want])
        torch.testing.assert_close(got.scores[request, :live], expected, atol=1e-5, rtol=1e-5)
        assert (got.scores[request, live:] == NEVER).all()


def test_a_pool_of_everything_is_the_exact_search() -> None:
    """Its norms too: nothing of the rough logits is left, whatever they were."""
    generator = torch.Generator().manual_seed(5)
    hidden, rows = (torch.randn(*size, 32, generator=generator).bfloat16() for size in ((2, 4), (50,)))
    exact = torch.einsum("sbh,vh->sbv", hidden.float(), rows.float())
    rough, scores = exact + torch.randn(exact.shape, generator=generator), -torch.rand(2, 4)
    pool = beam_select(rough, scores, 4 * 50)
    got = beam_rescore(pool, Exact(hidden, rows, EVERYTHING), scores, torch.full((2,), 60), 60)
    want = beam_select(exact, scores, 60)
    torch.testing.assert_close(got.norms, want.norms, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.scores, want.scores, atol=1e-5, rtol=0)
    assert torch.equal(got.parents, want.parents)
    assert torch.equal(got.columns, want.columns)


def test_ties_go_by_beam_and_column() -> None:
    generator = torch.Generator().manual_seed(6)
    hidden, rows = integers(generator, 1, 1, 4).expand(2, 6, 4), integers(generator, 40, 4)
    scores = torch.zeros(2, 6)
    exact = torch.einsum("sbh,vh->sbv", hidden.float(), rows.float())
    pool = beam_select(exact, scores, 240)
    got = beam_rescore(pool, Exact(hidden, rows, EVERYTHING), scores, torch.full((2,), 240), 200)
    want = beam_select(exact, scores, 200)
    assert len(got.scores.unique()) < 20
    assert torch.equal(got.parents, want.parents)
    assert torch.equal(got.columns, want.columns)


def test_what_is_not_finite_fails_its_request_alone() -> None:
    hidden, rows = torch.ones(4, 3, 8).bfloat16(), torch.zeros(20, 8).bfloat16()
    hidden[1, 2, 5] = torch.inf
    hidden[2, 0, 5] = torch.nan
    hidden[3, 1, 5] = torch.nan
    scores = torch.zeros(4, 3)
    scores[3, 1] = NEVER
    pool = beam_select(torch.zeros(4, 3, 20), scores, 60)
    got = beam_rescore(pool, Exact(hidden, rows, EVERYTHING), scores, torch.full((4,), 10), 10)
    assert got.failed.tolist() == [False, True, True, False]
    assert got.parents.max() < 3
    assert got.columns.max() < 20
    before = beam_select(torch.full((4, 3, 20), torch.nan), scores, 60)
    assert beam_rescore(
        before, Exact(hidden, rows, EVERYTHING), scores, torch.full((4,), 10), 10
    ).failed.all()


def test_logits_far_from_rough_ones_have_finite_scores() -> None:
    """No head is so coarse; a search must end all the same."""
    hidden, rows = torch.full((1, 1, 8), 30.0).bfloat16(), torch.full((20, 8), 30.0).bfloat16()
    for sign in (1, -1):
        pool = beam_select(torch.randn(1, 1, 20), torch.zeros(1, 1), 12)
        got = beam_rescore(
            pool, Exact(hidden, sign * rows, EVERYTHING), torch.zeros(1, 1), torch.tensor([12]), 12
        )
        assert got.scores.isfinite().all()
        assert not got.failed.any()


def test_a_pool_has_no_more_pairs_than_chunks_but_for_a_few() -> None:
    pool = Pool()
    assert pool.size(100, 1, 151_936) == pool.size(100, 100, 151_936) == 328
    assert pool.size(512, 512, 49_152) == 1564
    assert pool.size(512, 1, 49_152) == 768
    assert pool.size(512, 1, 300) == 512
    assert pool.size(100, 1, 300) == 128
    assert pool.size(4, 1, 300) == 40
