"""The cost model between, at and beyond its measured sizes."""

from __future__ import annotations

import pytest

from engine.packed import BatchBounds
from engine.runtime.buckets import make_buckets
from engine.runtime.cost import CostModel, sizes_to_measure

BUCKETS = make_buckets(BatchBounds(256, 8192, 512))


def test_prediction_counts_padding_and_interpolates() -> None:
    model = CostModel(BUCKETS, ((64, 1.0), (1024, 2.0), (8192, 9.0)))
    assert model.predict_ms(1) == model.predict_ms(64) == 1.0
    assert model.predict_ms(1024) == 2.0
    assert model.predict_ms(1025) == model.predict_ms(BUCKETS.choose(1025, 1).tokens) > 2.0
    assert model.predict_ms(8192) == 9.0
    with pytest.raises(ValueError, match="over the largest bucket"):
        model.predict_ms(8193)


def test_most_tokens_within_a_budget() -> None:
    model = CostModel(BUCKETS, ((64, 1.0), (8192, 9.0)))
    assert model.most_tokens(0.5) == 0
    assert model.most_tokens(100.0) == 8192
    most = model.most_tokens(4.0)
    assert model.predict_ms(most) <= 4.0 < model.predict_ms(most + 1)


def test_a_single_point_serves_every_size() -> None:
    assert CostModel(BUCKETS, ((8192, 9.0),)).predict_ms(1) == 9.0
    with pytest.raises(ValueError, match="at least one"):
        CostModel(BUCKETS, ())


def test_measured_sizes_reach_from_the_smallest_to_the_largest() -> None:
    sizes = sizes_to_measure(BUCKETS)
    assert sizes[0] == BUCKETS.tokens[0]
    assert sizes[-1] == BUCKETS.tokens[-1]
    assert len(sizes) == 12
    assert sizes_to_measure(make_buckets(BatchBounds(1, 2, 2))) == (2,)
