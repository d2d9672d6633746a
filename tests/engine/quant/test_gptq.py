"""Compensated rounding beats rounding to nearest where inputs are correlated, on the same grid."""

from __future__ import annotations

import torch

from engine.quant.gptq import compensate


def test_smaller_error_on_the_same_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(96, 96, generator=generator)
    inputs = torch.randn(400, 96, generator=generator) @ mix
    weight = torch.randn(40, 96, generator=generator)

    def rounding(column: torch.Tensor) -> torch.Tensor:
        return (column * 4).round() / 4

    found = compensate(weight, inputs.T @ inputs, rounding)
    assert torch.equal(found, rounding(found))
    lost = [float((inputs @ (each - weight).T).square().mean()) for each in (rounding(weight), found)]
    assert lost[1] < 0.5 * lost[0]


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weight = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    found = compensate(weight, torch.zeros(8, 8), torch.round)
    assert torch.equal(found, weight.round())
