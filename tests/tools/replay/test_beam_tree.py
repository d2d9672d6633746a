"""The tree of a sample's beams: each shared beginning once, ranks and scores where beams end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.values import Beams, SampleBeams
from tools.replay.beam_tree import beam_tree, tree_lines

SAMPLE = SampleBeams(
    token_ids=torch.tensor([[1, 2, 3], [4, 0, 0], [1, 2, 5], [1, 6, 3]]),
    lengths=torch.tensor([3, 1, 3, 3]),
    scores=torch.tensor([-0.5, -1.0, -1.5, -2.0]),
    finished=torch.tensor([False, True, False, False]),
    leaves=None,
)


def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(f" t{token}" for token in tokens) for tokens in sequences]


def test_shared_beginnings_stand_once() -> None:
    tree = beam_tree(Beams((SAMPLE,), decode=decode), SAMPLE)
    assert list(tree_lines(tree)) == [
        "1 ' t1'",
        "  2 ' t2'",
        "    3 ' t3'  #0 -0.500000",
        "    5 ' t5'  #2 -1.500000",
        "  6 ' t6'",
        "    3 ' t3'  #3 -2.000000",
        "4 ' t4'  #1 -1.000000",
    ]


def test_without_texts() -> None:
    tree = beam_tree(Beams((SAMPLE,)), SAMPLE)
    assert list(tree_lines(tree))[-1] == "4  #1 -1.000000"
