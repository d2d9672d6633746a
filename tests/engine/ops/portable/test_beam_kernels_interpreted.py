"""The kernels of a beam search's step against plain torch, run by Triton's interpreter in their own process.

Selection must give the very bits, given the norms that the kernels found; those may differ in their last bit.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed: kernels cannot be interpreted here")

PRELUDE = """
import torch
from engine.beam import selection
from engine.beam.frontier import Rules, expand, start
from engine.beam.legal import LegalTensors, find_edges, legal_logits
from engine.ops.portable import beam_advance, beam_follow, beam_positions, beam_select
torch.manual_seed(0)
NEVER = float("-inf")
beam_select._READERS = 3  # several turns each, and less to interpret
for module in (beam_advance, beam_follow, beam_positions, beam_select):
    module.wrap_triton = lambda kernel: kernel
    module.kernels = module._launch.launch

def check(logits, scores, count, closed=None, scales=None, legal=None, most=0, first=0):
    args = (logits, scales, scores, closed, *(legal or (None,) * 3), most, first, count)
    got = beam_select.Continuations(*beam_select.kernels(*args))
    plain = beam_select.Continuations(*beam_select._oracle(*args))
    assert torch.equal(got.failed, plain.failed)
    x = logits.float() if scales is None else logits.float() * scales.unsqueeze(-1)
    finite = x.isfinite().all(-1)
    torch.testing.assert_close(got.norms[finite], plain.norms[finite], rtol=1e-6, atol=1e-6)
    assert not got.norms[~finite].isfinite().any()
    if legal:
        x = legal_logits(x, legal[2], find_edges(legal[1], legal[0], most), first)
    want = selection.select(x, selection.Rows(got.norms, scores, closed), count)
    live = (want.scores != NEVER)[~got.failed]
    assert torch.equal(got.scores[~got.failed], want.scores[~got.failed])
    for mine, theirs in ((got.parents, want.parents), (got.columns, want.columns)):
        assert torch.equal(mine[~got.failed][live], theirs[~got.failed][live])
    return got
"""

PROGRAMS = {
    "selection": """
check(torch.randn(2, 5, 1000), -torch.rand(2, 5), 10)
check(torch.randn(2, 1, 9000), torch.zeros(2, 1), 40)
check(torch.zeros(2, 6, 1000), torch.zeros(2, 6), 12)
hot = torch.randn(2, 4, 3000)
hot[:, :, 700:1000] += 20
check(hot, -torch.rand(2, 4), 40)
hot[:, :, 700:1000] = 30
check(hot, torch.zeros(2, 4), 40)
scores = torch.full((1, 8), -50.0)
scores[0, 5] = 0
check(torch.randn(1, 8, 2000), scores, 60)
check(torch.randn(1, 8, 1000), torch.where(scores < 0, NEVER, scores), 60)
rows = torch.randn(10, 1100)[:, 50:1050].unflatten(0, (2, 5))
check(rows, -torch.rand(2, 5), 20)
check(rows.bfloat16(), -torch.rand(2, 5), 20, scales=torch.rand(2, 5))
# ties, ends and fewer candidates than asked for
for levels in (1, 3):
    logits = torch.randint(levels, (3, 7, 100)).float() / 8
    scores = -torch.randint(levels, (3, 7)).float() / 4
    scores[torch.rand(3, 7) < 0.2] = NEVER
    closed = torch.rand(3, 7) < 0.3
    check(logits, scores, 40, closed)
    check(logits, scores, 150, closed)
""",
    "not finite, legal sequences, a long list of hot chunks": """
logits, scores = torch.randn(5, 3, 300), torch.zeros(5, 3)
logits[0, 1, 7], logits[1, 2, 299], logits[2, 0, 3] = torch.nan, torch.inf, NEVER
logits[3, 1] = torch.nan
scores[3, 1] = NEVER
closed = torch.zeros(5, 3, dtype=torch.bool)
assert check(logits, scores, 20).failed.tolist() == [True, True, True, False, False]
closed[0, 1] = True
assert check(logits, scores, 20, closed).failed.tolist() == [False, True, True, False, False]
# legal sequences
degrees = [300, 0, 70, 1, 64, 65, 2]
offsets = torch.tensor([0, *degrees]).cumsum(0).to(torch.int32)
tokens = torch.cat([torch.randperm(1000)[:n].sort().values for n in degrees]).to(torch.int32)
nodes = torch.randint(0, 7, (3, 6))
for first in (0, 200):
    logits, scores = torch.randn(3, 6, 1000 - first), -torch.rand(3, 6)
    check(logits, scores, 50, legal=(nodes, offsets, tokens), most=300, first=first)
    closed = torch.rand(3, 6) < 0.3
    check(logits, scores, 50, closed, legal=(nodes, offsets, tokens), most=9000, first=first)
beam_select._HELD = 64  # the list does not fit in registers
check(torch.zeros(1, 40, 640), torch.zeros(1, 40), 6)
check(torch.randint(3, (1, 40, 640)).float(), torch.zeros(1, 40), 6)
""",
    "steps": """
# Root 0 with three edges, nodes 1 to 3 with two, one and two; everything below is a leaf.
offsets = torch.tensor([0, 3, 5, 6, 8, 8, 8, 8, 8, 8], dtype=torch.int32)
tokens = torch.tensor([2, 30, 99, 5, 50, 7, 1, 98], dtype=torch.int32)
children = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8], dtype=torch.int32)
tree = LegalTensors(offsets, tokens, children, (3, 2))
for legal in (None, tree):
    for ends in (None, torch.tensor([2, 50])):
        rules = Rules(6, torch.tensor([6, 3]), ends, legal)
        got, want = (start(2, 3, rules) for _ in range(2))
        for step in range(3):
            logits = torch.randn(2, got.scores.shape[1], 100)
            beam_select._launch, beam_follow._launch = beam_select.kernels, beam_follow.kernels
            got = expand(got, logits, rules, 0, step)
            beam_select._launch, beam_follow._launch = beam_select._oracle, beam_follow._oracle
            want = expand(want, logits, rules, 0, step)
            live = want.scores != NEVER
            torch.testing.assert_close(got.scores, want.scores)
            assert torch.equal(got.failed, want.failed)
            for name in ("tokens", "lengths", "parents", "closed", "nodes"):
                mine, theirs = getattr(got, name), getattr(want, name)
                assert (mine is None) == (theirs is None)
                assert mine is None or torch.equal(mine[live], theirs[live])
# whose rows they are
parents, tokens, ancestors = torch.randint(0, 100, (3, 100)), torch.randint(9, (3, 100, 5)), None
for step in range(5):
    args = (ancestors, parents, tokens, 4, step)
    got, want = beam_advance.kernels(*args), beam_advance._oracle(*args)
    assert all(map(torch.equal, got, want))
    assert got[1].ge(0).any(1).tolist() == [slot < step for slot in range(4)]
    ancestors = got[1]
# where they stand
for width in (1, 3, 100, 300):
    args = (torch.tensor([4, 9, 10, 40], dtype=torch.int32), 5, width)
    got, want = (each(*args)[:, : 3 * width] for each in (beam_positions.kernels, beam_positions._oracle))
    assert torch.equal(got, want)
    assert got[:, 0].tolist() == [5, 6, 7, 8, 9] and got[0, -1] == 30
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compute_what_plain_torch_does(name: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", PRELUDE + PROGRAMS[name]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
