"""Stored orders are permutations, and put a thread's results side by side."""

import pytest
import torch

from engine.ops.hopper import layout
from tools.bench.synthetic import MODELS

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16


@pytest.mark.parametrize("model", MODELS)
def test_orders_are_permutations(model):
    shape = MODELS[model].layer
    heads = shape.num_q + 2 * shape.num_kv
    orders = (
        layout.residual_rows(shape.hidden),
        layout.gate_up_rows(shape.intermediate, E4M3),
        layout.gate_up_rows(shape.intermediate, BF16),
        layout.qkv_rows(heads, shape.head_dim),
        layout.attention_columns(shape.num_q, shape.head_dim, E4M3),
        layout.attention_columns(shape.num_q, shape.head_dim, BF16),
        layout.hadamard_rows(shape.intermediate),
        layout.hadamard_columns(shape.intermediate),
    )
    for order in orders:
        every = torch.arange(order.shape[0])
        assert torch.equal(order.sort().values, every)
        assert torch.equal(order[layout.inverse(order)], every)


def held(order: torch.Tensor, lane: int, block: int) -> list[int]:
    """Logical rows that lane `lane` of a quad holds of the first `block` stored rows."""
    return [int(order[8 * j + 2 * lane + e]) for j in range(block // 8) for e in (0, 1)]


def test_a_thread_holds_neighbours():
    assert held(layout.residual_rows(64), 1, 32) == list(range(8, 16))
    gate_up = held(layout.gate_up_rows(128, BF16), 2, 128)
    assert gate_up[0::2] == [*range(16, 24), *range(48, 56)]
    assert gate_up[1::2] == [128 + c for c in gate_up[0::2]]
    gate_up = held(layout.gate_up_rows(128, E4M3), 2, 128)
    assert gate_up[0::2] == list(range(32, 48))
    assert gate_up[1::2] == [128 + c for c in range(32, 48)]
    mixed = held(layout.hadamard_rows(256), 2, 256)
    assert mixed[0::2] == list(range(64, 96))
    assert mixed[1::2] == [256 + c for c in range(64, 96)]
    stored = [64 * half + 16 * 2 + j for half in (0, 1) for j in range(16)]  # where that lane's results go
    assert layout.hadamard_columns(128)[stored].tolist() == list(range(64, 96))
    qkv = held(layout.qkv_rows(2, 128), 3, 128)
    assert qkv[0::2] == [*range(24, 32), *range(56, 64)]
    assert qkv[1::2] == [64 + c for c in qkv[0::2]]


@pytest.mark.parametrize(("output", "n"), [(E4M3, 16), (BF16, 8)])
def test_the_attention_stores_what_a_quad_holds_side_by_side(output, n):
    order = layout.attention_columns(2, 128, output)
    columns = [8 * j + e for j in range(16) for e in (0, 1)]  # of lane 0
    assert order[:n].tolist() == columns[:n]
    assert order[n] == 2  # lane 1
    assert order[4 * n : 5 * n].tolist() == columns[n : 2 * n]
    assert order[128:].tolist() == [128 + c for c in order[:128].tolist()]
