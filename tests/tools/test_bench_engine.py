"""`bench engine` on a tiny model: the workload, the physics, and the shape of the JSON line."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from tools.bench.engine_compare import Setup, compare
from tools.bench.physics import Shape, gemm_ceiling
from tools.bench.workload import MAX_TOKENS, make_requests
from tools.errors import UserError

SHAPE = Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16)


def setup_of(tiny, **changes) -> Setup:
    fields = {
        "source": tiny.checkpoint,
        "artifact": tiny.artifact,
        "device": "cpu",
        "requests": 2,
        "samples": 3,
        "rounds": 2,
        "threads": 1,
        "seed": 20,
        "gemm_size": 64,
    }
    return Setup(**(fields | changes))


def test_requests_are_the_same_every_time_and_uneven():
    requests = make_requests(20, 15, 1000, seed=20)
    assert requests == make_requests(20, 15, 1000, seed=20)
    assert requests != make_requests(20, 15, 1000, seed=21)
    lengths = sorted(len(sample.token_ids) for request in requests for sample in request)
    assert len(lengths) == 300
    assert 50 <= lengths[150] <= 70
    assert lengths[0] < 30
    assert 130 < lengths[-1] <= MAX_TOKENS


def test_useful_flops_by_hand():
    # q and output 8x8, key and value 8x4 each, gate, up and down 8x16 each: 2 FLOPs an entry, two layers
    assert SHAPE.flops_a_token == 2 * 2 * (64 + 64 + 32 + 32 + 3 * 128)
    requests = make_requests(1, 1, 100, seed=1)
    tokens = len(requests[0][0].token_ids)
    attention = (
        2 * 2 * 2 * 2 * 4 * tokens * (tokens + 1) / 2
    )  # layers, heads, q.k and p.v, 2 a pair, head_dim
    head = 2 * 8 * 5
    assert SHAPE.useful_flops(requests, num_labels=5) == SHAPE.flops_a_token * tokens + attention + head


def test_shape_without_a_head_dim_of_its_own():
    config = SimpleNamespace(
        num_hidden_layers=2,
        hidden_size=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
    )
    assert Shape.of(config) == SHAPE


def test_the_ceiling_is_measured():
    assert gemm_ceiling("cpu", torch.float32, 64) > 0


def test_both_sides_agree_and_the_line_is_complete(tiny_causal):
    steps: list[str] = []
    lines: list[str] = []
    found = json.loads(json.dumps(compare(setup_of(tiny_causal), steps.append, lines.append)))
    assert found["ratio"] == pytest.approx(found["samples_per_s"] / found["peer_samples_per_s"], rel=0.05)
    assert 0 <= found["max_abs_logprob_difference"] < 1e-3
    assert found["samples"] == 6
    assert found["padding_factor"] > 1
    assert {"machine", "torch", "commit", "threads", "share_of_ceiling", "peer"} <= set(found)
    assert "useful work" in lines[1]
    assert len(lines) == 6


def test_results_that_differ_stop_the_comparison(tiny_causal, monkeypatch: pytest.MonkeyPatch):
    from tools.bench.peer import TransformersPeer

    original = TransformersPeer._label_logprobs
    monkeypatch.setattr(
        TransformersPeer, "_label_logprobs", lambda self, logits: original(self, logits) + 0.01
    )
    with pytest.raises(UserError, match=r"results differ by 1\.\d+e-02, allowed are 0\.001"):
        compare(setup_of(tiny_causal, rounds=1), lambda _: None, lambda _: None)
