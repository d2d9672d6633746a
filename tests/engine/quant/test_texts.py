"""Texts are spread over the whole file, within what may be read of them."""

from __future__ import annotations

import pytest

from engine.quant.texts import Text, spread

TEXTS = [Text((number,) * (1 + number % 3)) for number in range(30)]  # 60 tokens


@pytest.mark.parametrize(
    ("tokens", "texts", "count"), [(60, 99, 30), (60, 10, 10), (30, 99, 15), (1, 99, 1), (0, 99, 1)]
)
def test_evenly_spaced_within_both_bounds(tokens: int, texts: int, count: int) -> None:
    kept = spread(TEXTS, tokens, texts)
    assert len(kept) == count
    assert kept == sorted(kept, key=TEXTS.index)
    assert sum(len(text.ids) for text in kept) <= max(tokens, 1)
    if count > 1:
        assert TEXTS.index(kept[-1]) >= 30 - 30 // count - 1


def test_none_of_none() -> None:
    assert spread([], 10) == []
