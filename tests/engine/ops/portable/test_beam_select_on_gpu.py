"""Selection and what follows it on a real device: the oracle's bits given the norms, captured, and on the
logits that break shortcuts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.beam.frontier import Rules, expand, start
from engine.beam.legal import LegalTensors, find_edges, legal_logits
from engine.beam.selection import Rows, select
from engine.ops.portable.beam_select import Continuations, beam_select

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
VOCABULARY = 151_936
NEVER = float("-inf")


def draw(*size: int) -> Tensor:
    return torch.randn(size, device="cuda")


def check(
    logits: Tensor, scores: Tensor, count: int, *, closed: Tensor | None = None, scales: Tensor | None = None,
    legal: tuple[Tensor, Tensor, Tensor] | None = None, most: int = 0,
) -> Continuations:  # fmt: skip
    more = {"closed": closed, "scales": scales, "legal": legal, "max_degree": most}
    got, again = (beam_select(logits, scores, count, **more) for _ in range(2))
    x = logits.float() if scales is None else logits.float() * scales.unsqueeze(-1)
    torch.testing.assert_close(got.norms, x.logsumexp(-1), rtol=1e-6, atol=2e-6)
    if legal is not None:
        x = legal_logits(x, legal[2], find_edges(legal[1], legal[0], most), 0)
    want = select(x, Rows(got.norms, scores, closed), count)
    live = want.scores != NEVER
    for each in (got, again):
        assert torch.equal(each.scores, want.scores)
        assert torch.equal(each.parents[live], want.parents[live])
        assert torch.equal(each.columns[live], want.columns[live])
    assert not got.failed.any()
    return got


@pytest.mark.parametrize(("requests", "beams", "count"), [(8, 1, 100), (3, 100, 100), (1, 512, 512)])
def test_real_sizes(requests: int, beams: int, count: int) -> None:
    logits, scores = draw(requests, beams, VOCABULARY).bfloat16() * 2, -draw(requests, beams).abs() * 5
    check(logits, scores, count)
    check(logits, scores, count, scales=draw(requests, beams).abs())
    check(logits, scores, count, closed=draw(requests, beams) > 1)


def test_logits_that_break_shortcuts() -> None:
    scores = torch.zeros(2, 100, device="cuda")
    check(torch.zeros(2, 100, 40_000, device="cuda"), scores, 100)
    check(torch.randint(3, (2, 100, 40_000), device="cuda").float(), scores, 100)
    hot = draw(2, 100, VOCABULARY).bfloat16()
    hot[:, :, 70_000:78_192] += 20
    check(hot, scores, 100)
    one = torch.full_like(scores, -50.0)
    one[:, 5] = 0
    check(draw(2, 100, VOCABULARY), one, 100)
    one[:, 6:] = NEVER
    check(draw(2, 100, 1000), one, 100)


def test_not_finite_fails_its_request_alone() -> None:
    logits, scores = draw(5, 7, 5000), torch.zeros(5, 7, device="cuda")
    logits[0, 1, 7], logits[1, 2, 4999], logits[2, 0, 3] = torch.nan, torch.inf, NEVER
    logits[3, 1], scores[3, 1] = torch.nan, NEVER
    got = beam_select(logits, scores, 20)
    assert got.failed.tolist() == [True, True, True, False, False]
    assert torch.equal(got.columns[3:], beam_select(logits[3:], scores[3:], 20).columns)


def tree(degree: int) -> LegalTensors:
    """A root with `degree` edges to leaves but the first hundred, which have one to a hundred edges each."""
    below = torch.arange(1, 101)
    degrees = torch.cat([torch.tensor([degree]), below, torch.zeros(degree - 100 + below.sum())]).long()
    offsets = torch.cat([torch.zeros(1), degrees.cumsum(0)]).to(torch.int32)
    tokens = torch.cat([torch.randperm(VOCABULARY)[:n].sort().values for n in (degree, *below.tolist())])
    children = torch.arange(1, len(tokens) + 1)
    return LegalTensors(
        offsets.cuda(), tokens.to(torch.int32).cuda(), children.to(torch.int32).cuda(), (degree, 100)
    )


def test_legal_sequences() -> None:
    legal = tree(30_000)
    nodes = torch.zeros(3, 1, dtype=torch.int64, device="cuda")
    edges = legal.offsets, legal.tokens
    check(draw(3, 1, VOCABULARY), torch.zeros(3, 1, device="cuda"), 100, legal=(nodes, *edges), most=30_000)
    nodes = torch.randint(1, 200, (3, 100), device="cuda")
    logits, scores = draw(3, 100, VOCABULARY).bfloat16(), -draw(3, 100).abs()
    check(logits, scores, 100, legal=(nodes, *edges), most=100)
    check(logits, scores, 100, legal=(nodes, *edges), most=40_000, closed=scores < -1)


@pytest.mark.parametrize("bounded", [False, True])
def test_two_steps_captured(bounded: bool) -> None:
    """A replay takes the logits that are there by then; beams are those of plain torch on a CPU."""
    legal = tree(3000) if bounded else None
    rules = Rules(100, torch.tensor([100, 60], device="cuda"), torch.tensor([17, 4000], device="cuda"), legal)
    first, second = draw(2, 1, VOCABULARY), draw(2, 100, VOCABULARY)

    def steps(a: Tensor, b: Tensor, rules: Rules) -> dict[str, Tensor | None]:
        return vars(expand(expand(start(2, 2, rules), a, rules, 0, 0), b, rules, 0, 1))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        steps(first, second, rules)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        got = steps(first, second, rules)
    first.copy_(draw(2, 1, VOCABULARY) * 2)
    second.copy_(draw(2, 100, VOCABULARY) * 2)
    graph.replay()
    torch.cuda.synchronize()
    host = legal and LegalTensors(
        legal.offsets.cpu(), legal.tokens.cpu(), legal.children.cpu(), legal.max_degree
    )
    assert rules.end_tokens is not None
    plain = Rules(100, rules.widths.cpu(), rules.end_tokens.cpu(), host)
    want = steps(first.cpu(), second.cpu(), plain)
    live = want["scores"] != NEVER
    for name, theirs in want.items():
        mine = got[name]
        if theirs is None or mine is None:
            assert mine is theirs
        elif name == "scores":
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-6, atol=1e-5)
        elif name == "failed":
            assert not mine.any()
        else:
            assert torch.equal(mine.cpu()[live], theirs[live]), name
