"""Stored weights stand for the matrices they came from."""

import pytest
import torch

from engine.ops.hopper.layout import inverse, residual_rows
from engine.ops.hopper.quantise import quantise
from engine.ops.hopper.weights import Factors, factor, prepare_layer, store
from tools.bench.synthetic import MODELS, random_source

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16


@pytest.mark.parametrize(("element", "step"), [(E4M3, 2**-4), (BF16, 2**-8)])
def test_store_folds_orders_and_rounds(element, step):
    torch.manual_seed(0)
    w, fold, columns = torch.randn(64, 48), torch.rand(48) + 0.5, torch.randperm(48)
    stored, scale = store(w, residual_rows(64), element, columns=columns, fold=fold)
    back = (stored.float() * scale)[inverse(residual_rows(64))][:, inverse(columns)]
    want = w * fold
    assert (back - want).abs().max() <= step * want.abs().max()
    assert ((back - want).abs() <= step * want.abs() + scale * 2**-9).all()
    assert stored.is_contiguous()


def test_quantise_saturates():
    assert quantise(torch.tensor([1e6, -1e6]), E4M3).float().tolist() == [448.0, -448.0]


def test_factors_leave_headroom():
    assert factor(112.0, E4M3) == 2.0
    assert factor(112.0, BF16) == 1.0


@pytest.mark.parametrize("model", ["qwen3-0.6b", "qwen2.5-0.5b", "smollm2-135m"])
def test_a_layer_has_the_sizes_that_the_ops_want(model):
    shape = MODELS[model].layer
    source = random_source(shape, 0)
    mixed = {"qkv": E4M3, "o": BF16, "gate_up": E4M3, "down": BF16}
    weights = prepare_layer(shape, source, mixed, Factors(qkv=2.0, gate_up=3.0), 5.0)
    for name, (rows, columns) in shape.matrices().items():
        assert getattr(weights, name).shape == (rows, columns)
        assert getattr(weights, name).dtype == mixed[name]
    assert (weights.bias is None) == (not shape.bias)
    assert weights.head_weight.shape == (2, shape.head_dim)
    assert weights.o_scales.tolist() == [1.0, 3.0]
    assert weights.down_scales.tolist() == [1.0, 5.0]
