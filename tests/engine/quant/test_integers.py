"""int8 products against plain Python integers; rounding at its edges."""

from __future__ import annotations

import pytest
import torch

from engine.quant.integers import multiply, round_int8, sum_in_float32


def random_int8(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)


@pytest.mark.parametrize(("rows", "columns", "outputs"), [(3, 40, 5), (17, 64, 8), (40, 1536, 24)])
def test_sums_are_exact(rows: int, columns: int, outputs: int) -> None:
    values, weight = random_int8(rows, columns, seed=1), random_int8(outputs, columns, seed=2)
    expected = [
        [sum(a * w for a, w in zip(x, y, strict=True)) for y in weight.tolist()] for x in values.tolist()
    ]
    found = multiply(values, torch.ones(rows, 1), weight, torch.ones(outputs))
    assert found.tolist() == expected


def test_blocks_have_their_own_scales() -> None:
    values, weight = random_int8(20, 256, seed=3), random_int8(16, 256, seed=4)
    scale = torch.rand(20, 2, generator=torch.Generator().manual_seed(5)) + 0.1
    weight_scale = torch.arange(1.0, 17.0)
    found = multiply(values, scale, weight, weight_scale)
    wide = values.double().unflatten(1, (2, 128)) * scale.double()[:, :, None]
    torch.testing.assert_close(
        found.double(), wide.flatten(1) @ weight.double().T * weight_scale, rtol=1e-5, atol=1e-2
    )


def test_the_largest_sum_does_not_wrap() -> None:
    values = torch.full((32, 8192), -127, dtype=torch.int8)
    assert multiply(values, torch.ones(1, 1), values[:8], torch.ones(8)).unique().tolist() == [8192 * 127**2]


def test_float32_holds_the_sums_that_it_is_given() -> None:
    """What a device multiplies with: random ones of many columns, and the largest that there are."""
    values, weight = random_int8(19, 3000, seed=6), random_int8(7, 3000, seed=7)
    assert torch.equal(sum_in_float32(values, weight), (values.long() @ weight.long().T).int())
    values = torch.full((4, 8192), -128, dtype=torch.int8)
    values[:, 1::2] = 127
    weight = torch.full((2, 8192), -128, dtype=torch.int8)
    assert torch.equal(sum_in_float32(values, weight), (values.long() @ weight.long().T).int())
    assert sum_in_float32(weight, weight).unique().tolist() == [8192 * 128**2]


def test_rounding_is_to_even_and_saturates_as_instructions_do() -> None:
    x = torch.tensor([0.5, 1.5, -2.5, 126.6, 1e9, -1e9, 0.0])
    assert round_int8(x, torch.tensor(1.0)).tolist() == [0, 2, -2, 127, 127, -128, 0]
