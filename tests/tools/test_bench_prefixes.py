"""`bench engine --prefixes` on a tiny model: four ways, the same results, FLOPs by hand."""

from __future__ import annotations

import json

import pytest
import torch

from engine.artifact import Artifact
from engine.packed import pack
from engine.prefixes import SHARE_ALL, Prefixes, Rules
from tools.bench.closed_loop import run_closed_loop
from tools.bench.mixes import draw_mixes
from tools.bench.physics import Shape
from tools.bench.prefix_engine import LENGTH, PrefixSetup, Way, bench_prefixes, compare, computed_flops
from tools.errors import UserError

SHAPE = Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16)


def test_ways_and_what_they_save(tiny_causal):
    lines: list[str] = []
    setup = PrefixSetup(tiny_causal.artifact, "cpu", samples=3, rounds=2, threads=1, seed=20)
    found = bench_prefixes(setup, lambda step: None, lines.append)
    assert len(lines) == 4
    json.dumps(found)
    rows = {row["way"]: row for row in found["ways"]}
    assert list(rows) == ["plain", "request", "constant", "both"]
    assert [row["computed_tokens"] for row in rows.values()] == [450, 450 - 128, 450 - 120, 450 - 120 - 48]
    assert rows["plain"]["saved_share"] == 0
    assert rows["plain"]["ratio"] == rows["plain"]["processor_ratio"] == 1
    assert rows["both"]["computed_gflop"] <= rows["request"]["computed_gflop"]
    assert found["max_abs_hidden_difference"] < 1e-3


def test_flops_of_what_is_computed():
    plain = pack([[1, 2, 3], [1, 2, 4]])
    once, _ = Prefixes(None, SHARE_ALL).pack([[(1, 2, 3), (1, 2, 4)]])
    attention = 4 * SHAPE.layers * SHAPE.heads * SHAPE.head_dim
    assert computed_flops(SHAPE, plain) == 6 * SHAPE.flops_a_token + 2 * (1 + 2 + 3) * attention
    assert computed_flops(SHAPE, once) == 4 * SHAPE.flops_a_token + (1 + 2 + 3 + 3) * attention


def test_other_results_count_for_nothing():
    class Pool:
        class executor:  # noqa: N801 - as LanePool names it
            @staticmethod
            def submit(run, packed):
                return type("Done", (), {"result": staticmethod(lambda: run(packed))})

        @staticmethod
        def forward(packed):
            return torch.full((1, 4), float(packed.num_tokens))

    ways = [Way(str(n), pack([[1] * n]), [], []) for n in (LENGTH, LENGTH - 1)]
    with pytest.raises(UserError, match="results differ by"):
        compare(Pool, ways, 1e-3)


def test_closed_loop_of_requests_that_share_their_beginning(tiny_causal):
    artifact = Artifact.open(tiny_causal.artifact)
    requests = draw_mixes(300)["shared64of150"].requests
    assert {len(sample) for request in requests for sample in request} == {150}
    packed, (saved,) = Prefixes(None, Rules()).pack(requests[:1])
    assert packed.num_tokens == 15 * 150 - 14 * 64
    assert saved.request == 14 * 64
    pool = artifact.open_lanes(1)
    try:
        load = run_closed_loop(
            pool, lambda hidden: (hidden[:, :2],), [request[:4] for request in requests],
            in_flight=2, seconds=0.3, bounds=artifact.bounds, prefixes=Prefixes(None, Rules()),
        )  # fmt: skip
    finally:
        pool.close()
    assert load.requests_per_s > 0
    assert load.saved_share == pytest.approx(3 * 64 / 600)
    assert 1 <= load.batch_requests <= 2
    assert load.p99_ms >= load.mean_ms / 2
