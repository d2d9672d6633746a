"""Lanes of graphs over a model that looks its answer up: for tests of the lanes themselves, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.runtime.graph_lanes import GraphLanePool
from engine.runtime.native import Runner

VOCAB = 50
WEIGHTS = {
    "norm.weight": torch.ones(4),
    "table": torch.arange(float(VOCAB))[:, None].repeat(1, 4).bfloat16(),
}


class TableRunner:
    """hidden[s] = table[last token of s]."""

    def constant_names(self) -> list[str]:
        return []

    def use_constants(self, constants: object) -> None:
        pass

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        ids, _, borders = inputs
        last = ids[(borders[1:].long() - 1).clamp_min(0)]
        return [WEIGHTS["table"][last]]


class TablePool(GraphLanePool):
    def open_runner(self) -> Runner:
        return TableRunner()
