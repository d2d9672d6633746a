"""Every scheme against its formula on one matrix, and what the input rules promise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.quant.calibrated import best_head_scales, predicted_width
from engine.quant.int8 import ExactRows, HadamardBlocks, Int8Matrix, PredictedRows, StaticHeads, make_int8
from engine.quant.rows import Rows
from engine.quant.schemes import KINDS, SCHEMES, Scheme, make_matrix, unserved

HEADS = 4
# Largest relative error of a product of 128 random inputs: 8 bits of mantissa, 4, and 7 of a fixed point.
TOLERANCES = {"bf16": 0.005, "e4m3_static": 0.06, "e4m3_token": 0.06, "int8": 0.02, "int8_exact": 0.02}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stream_rows(num: int = 256) -> Rows:
    """Rows that grow by about 1.2 from the step before, each of another size."""
    values = random(num, 128) * torch.logspace(0, 1.5, num)[:, None]
    rms = values.square().mean(-1, keepdim=True).sqrt()
    return Rows(values, 1 / rms, rms / (1.2 + 0.05 * random(num, 1, seed=1)))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_near_the_float_product(scheme: Scheme, kind: str) -> None:
    rows = stream_rows() if kind in ("qkv", "gate_up") else Rows(random(256, 128))
    weight = random(160, 128, seed=2)
    expected = rows.inputs @ weight.T
    for compensated in (True, False):
        matrix = make_matrix(scheme, kind, weight, rows, HEADS, compensated=compensated)
        error = (matrix(rows) - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert 1e-4 < error < TOLERANCES[scheme]


def test_int8_is_its_formula() -> None:
    rows, weight = Rows(random(30, 256)), random(136, 256, seed=2)
    matrix = make_int8(HadamardBlocks(), weight, None)
    assert matrix.weight_scale.unique().numel() == 2  # 128 rows and the rest
    values, scale = matrix.rule.quantise(rows)
    assert scale.shape == (30, 2)
    wide = (values.double().reshape(30, 2, 128) * scale.double()[:, :, None]).flatten(1)
    expected = wide @ (matrix.weight.double() * matrix.weight_scale.double()[:, None]).T
    torch.testing.assert_close(matrix(rows).double(), expected, rtol=1e-5, atol=1e-4)


def test_repeats_and_neighbours_do_not_change_a_row() -> None:
    rows, weight = Rows(random(64, 128)), random(64, 128, seed=2)
    matrix = make_int8(ExactRows(), weight, None)
    whole = matrix(rows)
    assert torch.equal(whole, matrix(rows))
    assert torch.equal(whole[:40], matrix(rows.take(torch.arange(40))))


def test_folding_leaves_the_product() -> None:
    x, weight = random(20, 128), random(24, 128, seed=1)
    scales = torch.tensor([0.5, 1.0, 2.0, 4.0])
    torch.testing.assert_close(
        HadamardBlocks().fold(x) @ HadamardBlocks().fold(weight).T, x @ weight.T, atol=1e-4, rtol=1e-4
    )
    static = StaticHeads(scales)
    values, one = static.quantise(Rows(x))
    assert one.tolist() == [[1.0]]
    assert (values.float() @ static.fold(weight).T - x @ weight.T).abs().max() < 40


def test_a_prediction_is_found_and_given_up_where_rows_grow_unevenly() -> None:
    rows = stream_rows()
    width = predicted_width(rows)
    assert width is not None
    assert 3.5 < width < 7  # four root mean squares, times the growth
    assert rows.before is not None
    torn = Rows(rows.values, rows.factor, rows.before * torch.logspace(-2, 0, len(rows.values))[:, None])
    assert predicted_width(torn) is None
    assert predicted_width(Rows(rows.values, rows.factor, None)) is None
    matrix = make_matrix("int8", "qkv", random(16, 128), torn, HEADS)
    assert isinstance(matrix, Int8Matrix)
    assert isinstance(matrix.rule, ExactRows)


def test_the_first_step_of_a_prediction_is_exact() -> None:
    rows = Rows(random(8, 128))
    assert torch.equal(PredictedRows(4.0).quantise(rows)[1], ExactRows().quantise(rows)[1])


def test_head_scales_follow_their_heads_and_zeros_keep_a_scale() -> None:
    values = random(200, 64)
    values[:, :16] *= 10
    values[:, 48:] = 0
    scales = best_head_scales(values, HEADS)
    assert 5 < scales[0] / scales[1] < 20
    assert scales[3] > 0
    assert StaticHeads(scales).quantise(Rows(values))[0][:, 48:].abs().max() == 0


def test_what_does_not_divide_stays_bf16_with_the_reason(make_decoder: object) -> None:
    from dataclasses import replace

    assert callable(make_decoder)
    architecture = make_decoder()[0]
    assert unserved("int8", architecture) == {}
    odd = replace(architecture, intermediate_size=80)
    assert "80" in unserved("int8", odd)["down"]
    assert unserved("e4m3_static", odd) == {}
