"""Rescoring on a real device: the oracle's answer, the same bits again and out of a graph, at real sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.beam.selection import Exact, Pool, best_first
from engine.ops.portable.beam_rescore import beam_rescore
from engine.ops.portable.beam_select import Continuations, beam_select

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
VOCABULARY = 151_936
NEVER = float("-inf")
POOL = Pool()


def whole(*size: int) -> Tensor:
    """Products of such rows are exact in any order."""
    return torch.randint(-2, 3, size, device="cuda").bfloat16()


def rough(hidden: Tensor, rows: Tensor) -> Tensor:
    """Off by as much as 8 bits are. Errors of tens would leave of a norm, its pool taken out,
    what float32 rounds differently in another order: 0.2 of a norm was seen."""
    logits = hidden.flatten(0, 1) @ rows.t()
    return (logits + 0.3 * torch.randn_like(logits)).view(*hidden.shape[:-1], -1)


def on_host(found: Any) -> Any:
    return type(found)(**{name: x.cpu() if isinstance(x, Tensor) else x for name, x in vars(found).items()})


def check(
    hidden: Tensor, rows: Tensor, scores: Tensor, count: int, widths: Tensor, *, exactly: bool, **more: Any
) -> Continuations:
    """`exactly`: order and bits, from the norms that the kernels found."""
    beams, columns = hidden.shape[1], more.get("max_degree", len(rows))
    pool = beam_select(rough(hidden, rows), scores, POOL.size(count, beams, columns), **more)
    exact = Exact(hidden, rows, POOL)
    got, again = (beam_rescore(pool, exact, scores, widths, count, **more) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(vars(got).values(), vars(again).values(), strict=True))
    host = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in more.items()}
    if more.get("legal") is not None:
        host["legal"] = tuple(x.cpu() for x in more["legal"])
    want = beam_rescore(on_host(pool), on_host(exact), scores.cpu(), widths.cpu(), count, **host)
    torch.testing.assert_close(got.norms.cpu(), want.norms, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(got.scores.cpu(), want.scores, rtol=1e-5, atol=1e-4)
    assert torch.equal(got.failed.cpu(), want.failed)
    if exactly:
        x = torch.zeros_like(pool.scores)
        for request in range(len(x)):
            x[request] = (
                hidden[request][pool.parents[request]].float() * rows[pool.columns[request]].float()
            ).sum(-1)
        mine = (x - got.norms.gather(1, pool.parents)) + scores.gather(1, pool.parents)
        place = torch.arange(x.shape[1], device="cuda")
        bounds = [[POOL.size(width, beams, columns)] for width in widths.tolist()]
        dead = (pool.scores == NEVER) | (place >= torch.tensor(bounds, device="cuda"))
        span = len(rows)
        best = best_first(torch.where(dead, NEVER, mine), count, pool.parents * span + pool.columns)
        live = best.scores != NEVER
        assert torch.equal(got.scores, best.scores)
        assert torch.equal(got.parents[live], (best.index // span)[live])
        assert torch.equal(got.columns[live], (best.index % span)[live])
    return got


@pytest.mark.parametrize(("requests", "beams", "count"), [(8, 1, 100), (3, 100, 100), (1, 512, 512)])
@pytest.mark.parametrize("size", [576, 896, 5120])
def test_real_sizes(requests: int, beams: int, count: int, size: int) -> None:
    scores = -torch.randn(requests, beams, device="cuda").abs() * 5
    widths = torch.full((requests,), count, device="cuda")
    widths[-1] = 1 + count // 2
    rows = whole(VOCABULARY // 8, size)
    check(whole(requests, beams, size), rows, scores, count, widths, exactly=True)
    hidden = torch.randn(requests, beams, size, device="cuda").bfloat16()
    check(hidden, rows / 16, scores, count, widths, exactly=False)


def test_ends_dead_beams_and_legal_sequences() -> None:
    hidden, rows = whole(3, 100, 896), whole(20_000, 896) / 8
    scores, widths = -torch.randn(3, 100, device="cuda").abs(), torch.tensor([100, 100, 30], device="cuda")
    scores[:, 90:] = NEVER
    closed = scores < -1
    got = check(hidden, rows, scores, 100, widths, exactly=False, closed=closed)
    shut = closed.gather(1, got.parents) & (got.scores != NEVER)
    assert torch.equal(got.scores[shut], scores.gather(1, got.parents)[shut])
    degrees = [5000, 0, 1, 70, 300]
    offsets = torch.tensor([0, *degrees]).cumsum(0).to(torch.int32).cuda()
    tokens = torch.cat([torch.randperm(20_000)[:n].sort().values for n in degrees]).to(torch.int32).cuda()
    legal = torch.randint(5, (3, 100), device="cuda"), offsets, tokens
    check(hidden, rows, scores, 100, widths, exactly=False, closed=closed, legal=legal, max_degree=5000)


def test_not_finite_fails_its_request_alone_out_of_a_graph_too() -> None:
    hidden, rows = torch.randn(4, 7, 896, device="cuda").bfloat16(), whole(5000, 896) / 16
    scores, widths = torch.zeros(4, 7, device="cuda"), torch.full((4,), 20, device="cuda")
    pool = beam_select(rough(hidden, rows), scores, POOL.size(20, 7, 5000))

    def rescore() -> Continuations:
        return beam_rescore(pool, Exact(hidden, rows, POOL), scores, widths, 20)

    good = rescore()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = rescore()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(vars(found).values(), vars(good).values(), strict=True))
    hidden[1, int(pool.parents[1, 0]), 3] = torch.nan
    graph.replay()
    torch.cuda.synchronize()
    assert found.failed.tolist() == [False, True, False, False]
    for request in (0, 2, 3):
        assert torch.equal(found.columns[request], good.columns[request])
