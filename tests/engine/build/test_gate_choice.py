"""At which sizes a search's gate is compared."""

from itertools import pairwise

from engine.beam.bounds import BeamBounds
from engine.build.gate_choice import REQUESTS, TOKEN_GROWTH, rows_to_compare
from engine.packed import BatchBounds


def test_steps_and_prompts_are_compared():
    rows = rows_to_compare(BatchBounds(32, 16384, 512), BeamBounds(100, 4, 32))
    assert {100 * count for count in REQUESTS} <= set(rows)
    assert max(rows) > 16384 / TOKEN_GROWTH
    for low, high in pairwise(row for row in rows if row >= 512):
        assert high <= low * TOKEN_GROWTH + 1  # no stretch of sizes is passed over


def test_small_bounds_give_small_sizes():
    assert rows_to_compare(BatchBounds(2, 24, 12), BeamBounds(1, 1, 2)) == (2, 4, 24)
