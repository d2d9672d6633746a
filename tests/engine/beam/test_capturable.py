"""The search never reads a tensor's value: it runs where tensors have none, as a graph capture would need.

Its operations are replaced by the plain torch that they run on a CPU: what tracing sees of them says nothing.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.beam.frontier import Rules
from engine.beam.legal import LegalTensors
from engine.beam.search import Head, search
from engine.ops.portable import beam_advance, beam_follow, beam_select

PROMPTS, WIDTH, HIDDEN, VOCAB, STEPS = 3, 7, 16, 1000, 2


class ShapesOnly:
    slots = 4

    def prompt(self) -> Tensor:
        return torch.empty(PROMPTS, HIDDEN)

    def step(self, tokens: Tensor, step: int, ancestors: Tensor) -> Tensor:
        assert tokens.shape == (PROMPTS * WIDTH,)
        assert ancestors.shape == (self.slots, PROMPTS * WIDTH)
        return torch.empty(len(tokens), HIDDEN)


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("sliced", [False, True])
def test_shapes_are_all_it_needs(
    finish: bool, bounded: bool, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (beam_advance, beam_follow, beam_select):
        monkeypatch.setattr(module, "_launch", module._oracle)
    with FakeTensorMode():
        edges = torch.empty(90, dtype=torch.int32)
        legal = LegalTensors(torch.empty(92, dtype=torch.int32), edges, edges, (30, 5, 2))
        ends = torch.empty(2, dtype=torch.int64) if finish else None
        widths = torch.empty(PROMPTS, dtype=torch.int64)
        head = Head(torch.empty(VOCAB, HIDDEN), ((0, 300), (300, 700), (700, 1000)) if sliced else None)
        found = search(ShapesOnly(), head, Rules(WIDTH, widths, ends, legal if bounded else None), STEPS)
        assert found.tokens.shape == (PROMPTS, WIDTH, STEPS + 1)
        assert found.scores.shape == found.lengths.shape == (PROMPTS, WIDTH)
        assert (found.closed is not None) == finish
        assert (found.nodes is not None) == bounded
