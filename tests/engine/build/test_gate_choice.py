"""At which sizes a search's gate is compared."""

from engine.beam.bounds import BeamBounds
from engine.build.gate_choice import REQUESTS, batches_to_compare
from engine.packed import BatchBounds


def test_steps_and_prompts_of_each_batch():
    batches = batches_to_compare(BatchBounds(32, 16384, 512), BeamBounds(100, 4, 32))
    assert batches == [(100 * count, 256 * count) for count in REQUESTS]


def test_sizes_stay_within_small_bounds():
    assert batches_to_compare(BatchBounds(2, 24, 12), BeamBounds(1, 1, 2)) == [(2, 6), (4, 12)]
