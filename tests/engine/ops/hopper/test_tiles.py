"""Tiles cover every output once, and widths are chosen as measured."""

from collections import Counter

import pytest

from engine.ops.hopper import tiles
from tools.bench.synthetic import MODELS


@pytest.mark.parametrize("rows", [1, 128, 129, 1000, 4096])
@pytest.mark.parametrize("model", MODELS)
def test_tiles_cover_every_output_once(model, rows):
    for width, _ in MODELS[model].layer.matrices().values():
        for tile in (128, 192, 256):
            dealt = Counter((row, column) for _, row, column, _ in tiles.deal(rows, width, tile, 66))
            assert set(dealt.values()) == {1}
            assert {r for r, _ in dealt} >= set(range(0, rows, tiles.ROWS))
            assert {c for _, c in dealt} == set(range(0, width, tile))


def test_blocks_differ_by_at_most_one_tile():
    load = Counter(block for block, *_ in tiles.deal(4096, 6144, 256, 66))
    assert max(load.values()) - min(load.values()) <= 1


@pytest.mark.parametrize(
    ("rows", "width", "depth", "want"),
    [(4096, 1024, 2048, 256), (4096, 1024, 3072, 256), (2048, 1024, 2048, 128), (1024, 1024, 3072, 128)],
)
def test_residual_width_as_measured(rows, width, depth, want):
    assert tiles.choose_width(rows, width, depth, tiles.residual_widths(width)) == want


@pytest.mark.parametrize("rows", [2048, 4096, 8192])
def test_wide_outputs_take_wide_tiles(rows):
    assert tiles.choose_width(rows, 6144, 1024, tiles.gate_up_widths()) == 256
    assert tiles.choose_width(rows, 4096, 1024, tiles.qkv_widths(128)) == 256


@pytest.mark.parametrize(
    ("rows", "width", "want"),
    [(4096, 1024, 256), (2048, 1024, 128), (4096, 576, 192), (8192, 1536, 256), (1, 1536, 192)],
)
def test_chains_take_wide_tiles_where_they_fill_the_chip(rows, width, want):
    assert tiles.chain_width(rows, width) == want


def test_partial_sums_fit_their_slots():
    assert tiles.residual_widths(1536) == (192, 256)
    assert tiles.residual_widths(4096) == ()


@pytest.mark.parametrize("rows", [1, 1000, 4096])
@pytest.mark.parametrize("model", MODELS)
def test_a_chain_waits_for_lower_tickets_only(model, rows):
    """The argument against deadlocks: the lowest unfinished ticket never waits, whichever clusters run."""
    shape = MODELS[model].layer
    o = tiles.chain_width(rows, shape.hidden)
    widths = ((shape.hidden, o), (2 * shape.intermediate, 256), (shape.hidden, o), (shape.qkv_width, 256))
    tickets = list(tiles.chain_tickets(rows, widths))
    assert all(waits_for <= ticket for ticket, (*_, waits_for) in enumerate(tickets))
    last_of_pair = {(phase, pair): ticket for ticket, (phase, pair, _, _) in enumerate(tickets)}
    assert all(
        waits_for == last_of_pair[phase - 1, pair] + 1 for phase, pair, _, waits_for in tickets if phase
    )
    assert len({ticket[:3] for ticket in tickets}) == len(tickets)
