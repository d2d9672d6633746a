"""How a decode step's attention is cut: what runs at once, and what then does."""

import pytest

from engine.ops.portable.beam_attention import AT_ONCE, choose_tiles


@pytest.mark.parametrize(("prompts", "crowded"), [(1, False), (15, False), (16, True), (28, True)])
def test_hundred_beams_of_two_key_heads(prompts: int, crowded: bool) -> None:
    tiles = choose_tiles(7, 64, 90)
    assert (tiles.programs(2, 100, prompts) > AT_ONCE) is crowded


@pytest.mark.parametrize("dim", [64, 128])
def test_a_crowd_takes_fewer_keys_and_the_same_beams(dim: int) -> None:
    tiles = choose_tiles(7, dim, 90)
    assert tiles.crowded() == tiles._replace(keys=32)
