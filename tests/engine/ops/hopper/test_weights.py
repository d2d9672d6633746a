"""Stored weights stand for the matrices they came from."""

import pytest
import torch

from engine.ops.hopper.layout import inverse, residual_rows
from engine.ops.hopper.quantise import quantise
from engine.ops.hopper.supports import MATRICES
from engine.ops.hopper.weights import Factors, factor, prepare_layer, restore_layer, store
from tools.bench.synthetic import MODELS, random_source

E4M3, BF16, INT8 = torch.float8_e4m3fn, torch.bfloat16, torch.int8


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


PRECISIONS = {
    "bf16": ((BF16,) * 4, 0.003),
    "e4m3": ((E4M3,) * 4, 0.04),
    "int8": ((INT8,) * 4, 0.02),
    "int8 but down": ((INT8, INT8, INT8, BF16), 0.02),
    "int8 but o and gate_up": ((INT8, E4M3, BF16, INT8), 0.04),
}


@pytest.mark.parametrize("model", ["qwen3-0.6b", "qwen2.5-0.5b"])
@pytest.mark.parametrize("kind", PRECISIONS)
def test_a_restored_layer_is_the_one_that_was_stored(model, kind):
    shape = MODELS[model].layer
    source = random_source(shape, 0)
    elements, tolerance = PRECISIONS[kind]
    precision = dict(zip(MATRICES, elements, strict=True))
    heads = torch.linspace(2.0, 5.0, shape.num_q) if precision["o"] == INT8 else 3.0
    factors = Factors(2.0, heads, 5.0, 7.0)
    weights = prepare_layer(shape, source, precision, factors, 11.0)
    restored = restore_layer(shape, weights, torch.tensor(factors.qkv))
    folded = {
        "qkv": source.qkv * source.input_norm, "o": source.o, "down": source.down,
        "gate_up": source.gate_up * source.post_norm,
    }  # fmt: skip
    for name, want in folded.items():
        assert (getattr(restored, name) - want).norm() < tolerance * want.norm()
    for name in ("bias", "q_norm", "k_norm"):
        found, want = getattr(restored, name), getattr(source, name)
        assert (found is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(found, want)
    assert set(restored.input_norm.tolist()) == set(restored.post_norm.tolist()) == {1.0}
