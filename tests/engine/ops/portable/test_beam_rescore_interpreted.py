"""beam_rescore's kernels against plain torch, run by Triton's interpreter in their own process.

Products of small integers are exact, so order and ties must be the very ones; others agree to a tolerance.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed: kernels cannot be interpreted here")

PROGRAM = """
import torch
from engine.beam.selection import Exact, Pool
from engine.ops.portable import beam_rescore, beam_select
torch.manual_seed(0)
NEVER = float("-inf")
beam_rescore.wrap_triton = lambda kernel: kernel
kernels, oracle = beam_rescore._launch.launch, beam_rescore._oracle

def check(hidden, rows, scores, count, widths, closed=None, legal=None, most=0, first=0, noise=0.2, few=1000):
    wanted = Pool(3, 2, few)
    exact = torch.einsum("sbh,vh->sbv", hidden.float(), rows.float()).nan_to_num(0, 0, 0)
    rough = exact + noise * torch.randn_like(exact)
    more = dict(closed=closed, legal=legal, max_degree=most, first_token=first)
    size = wanted.size(count, hidden.shape[1], most or len(rows))
    pool = beam_select.beam_select(rough, scores, size, **more)
    # what kernels fill a pool up with
    for x in (pool.parents, pool.columns):
        x[pool.scores == NEVER] = 0
    found = []
    for each in (kernels, kernels, oracle):
        beam_rescore._launch = each
        found.append(beam_rescore.beam_rescore(
            pool, Exact(hidden, rows, wanted), scores, torch.tensor(widths), count, **more
        ))
    got, again, want = found
    assert torch.equal(got.failed, want.failed), (got.failed, want.failed)
    good = ~got.failed
    for name in ("scores", "parents", "columns", "norms"):
        assert torch.equal(getattr(got, name)[good], getattr(again, name)[good])
    torch.testing.assert_close(got.norms[good], want.norms[good], rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(got.scores[good], want.scores[good], rtol=1e-6, atol=1e-5)
    live = want.scores[good] != NEVER
    for mine, theirs in ((got.parents, want.parents), (got.columns, want.columns)):
        assert torch.equal(mine[good][live], theirs[good][live])
    assert got.parents.min() >= 0 and got.parents.max() < hidden.shape[1]
    return got

def whole(*size):
    return torch.randint(-2, 3, size).bfloat16()

def drawn(*size):
    return torch.randn(size).bfloat16()

# products of one block and of several, with columns that are left over; requests of their own widths
check(drawn(2, 5, 96), drawn(300, 96), -torch.rand(2, 5), 10, [10, 3])
beam_rescore._AT_ONCE = 128
check(drawn(2, 5, 96), drawn(300, 96), -torch.rand(2, 5), 10, [10, 3])
check(drawn(1, 3, 300), drawn(50, 300), -torch.rand(1, 3), 6, [6])
# a first expansion, a pool over one tile of everything, fewer candidates than wanted
check(drawn(2, 1, 64), drawn(200, 64), torch.zeros(2, 1), 30, [30, 30])
check(drawn(1, 40, 32), drawn(100, 32), -torch.rand(1, 40), 100, [100])
check(drawn(2, 2, 32), drawn(7, 32), torch.zeros(2, 2), 30, [30, 9])
# no more pairs than chunks
check(drawn(2, 1, 64), drawn(3000, 64), torch.zeros(2, 1), 30, [30, 9], few=10)
check(drawn(2, 3, 64), drawn(300, 64), torch.zeros(2, 3), 8, [8, 2], few=10)
# ties, closed and dead beams
for _ in range(2):
    scores = -torch.randint(3, (3, 7)).float() / 4
    scores[torch.rand(3, 7) < 0.2] = NEVER
    closed = torch.rand(3, 7) < 0.3
    for noise in (0.0, 0.1):
        same = whole(1, 1, 16).expand(3, 7, 16)
        check(same, whole(40, 16), scores, 20, [20, 20, 7], closed, noise=noise)
        check(whole(3, 7, 16), whole(40, 16), torch.full_like(scores, NEVER), 20, [20, 20, 7], closed)
# legal sequences
degrees = [90, 0, 70, 1, 64, 65, 2]
offsets = torch.tensor([0, *degrees]).cumsum(0).to(torch.int32)
tokens = torch.cat([torch.randperm(200)[:n].sort().values for n in degrees]).to(torch.int32)
nodes = torch.randint(0, 7, (3, 6))
for first in (0, 50):
    rows, scores = drawn(200 - first, 32), -torch.rand(3, 6)
    check(drawn(3, 6, 32), rows, scores, 20, [20, 20, 5], torch.rand(3, 6) < 0.3,
          legal=(nodes, offsets, tokens), most=90, first=first)
# what is not finite
hidden, rows, scores = drawn(4, 3, 32), drawn(60, 32), torch.zeros(4, 3)
hidden[0, 1, 3], hidden[1, 2, 4], hidden[2, 0, 5] = torch.nan, torch.inf, torch.nan
scores[2, 0] = NEVER
assert check(hidden, rows, scores, 20, [20] * 4).failed.tolist() == [True, True, False, False]
"""


def test_kernels_compute_what_plain_torch_does() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
