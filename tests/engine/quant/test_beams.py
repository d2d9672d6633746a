"""A search over the emulated decoder is the plain one; ranks are counted as they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.beam.head_weight import HeadWeight, narrow_head
from engine.packed import pack
from engine.quant.beams import find_winners
from engine.quant.emulation import EmulatedDecoder
from engine.quant.floats import Bf16Matrix
from engine.quant.ranks import Winners, compare_ranks
from engine.quant.texts import Text

WIDTH, STEPS = 6, 2


@pytest.fixture
def decoder(make_decoder: Any) -> EmulatedDecoder:
    return EmulatedDecoder(*make_decoder())


def random_head(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, 64, generator=torch.Generator().manual_seed(1)) * 0.1


def search_whole(decoder: EmulatedDecoder, head: torch.Tensor, ids: tuple[int, ...]) -> Winners:
    """Every sequence computed whole at every step."""
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(STEPS + 1):
        packed = pack([ids + tokens for tokens, _ in beams])
        logprobs = (decoder.run(packed, {}) @ head.T).log_softmax(-1)
        grown = [
            ((*tokens, token), score + float(row[token]))
            for (tokens, score), row in zip(beams, logprobs, strict=True)
            for token in range(len(row))
        ]
        beams = sorted(grown, key=lambda each: -each[1])[:WIDTH]
    return Winners([tokens for tokens, _ in beams], [score for _, score in beams])


def test_a_search_with_its_own_keys_is_one_of_whole_sequences(decoder: EmulatedDecoder) -> None:
    head = random_head(97)
    for ids in ((7, 8, 3, 50, 4), (7, 8)):
        found = find_winners(decoder, HeadWeight(head), Text(ids, prefix=1), {}, width=WIDTH, steps=STEPS)
        expected = search_whole(decoder, head, ids)
        assert found.tokens == expected.tokens
        torch.testing.assert_close(
            torch.tensor(found.scores), torch.tensor(expected.scores), atol=1e-4, rtol=0
        )


def test_a_plans_matrices_move_scores(decoder: EmulatedDecoder) -> None:
    head = HeadWeight(random_head(97))
    coarse = {place: Bf16Matrix.of(plain.weight) for place, plain in decoder.plain.items()}
    text = Text((7, 8, 3, 50, 4))
    exact, found = (
        find_winners(decoder, head, text, matrices, width=WIDTH, steps=STEPS) for matrices in ({}, coarse)
    )
    ranks = compare_ranks([exact], [found])
    assert (ranks.prompts, ranks.width, ranks.steps) == (1, WIDTH, STEPS)
    assert 0 < ranks.score_shift < 0.2


def test_a_narrow_head_moves_scores(decoder: EmulatedDecoder) -> None:
    head, text = random_head(96), Text((7, 8, 3, 50, 4))
    narrow = narrow_head(head)
    assert narrow is not None
    exact, found = (
        find_winners(decoder, weight, text, {}, width=WIDTH, steps=STEPS)
        for weight in (HeadWeight(head), HeadWeight(head, *narrow))
    )
    assert 1e-4 < compare_ranks([exact], [found]).score_shift < 0.2


def test_what_is_counted() -> None:
    theirs = Winners([(1, 1), (1, 2), (2, 1), (2, 2)], [-1.0, -2.0, -3.0, -4.0])
    ours = Winners([(1, 2), (1, 1), (2, 1), (9, 9)], [-1.5, -1.75, -3.0, -3.5])
    ranks = compare_ranks([theirs, theirs], [ours, theirs])
    assert (ranks.winners, ranks.top, ranks.best) == (0.875, 0.875, 0.5)
    assert ranks.order == pytest.approx((2 / 3 + 1) / 2)
    assert ranks.score_shift == pytest.approx((0.75 + 0.5) / 3 / 2)
