"""What the integer product takes: shapes that its kernel would read past are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.ops.portable.linear_int8 import linear_int8
from engine.ops.portable.quantised import Activation

TOKENS, OUTPUTS, WIDTH = 5, 144, 256
ROWS, BLOCKS = torch.full((TOKENS, 1), 0.5), torch.full((WIDTH // 128, TOKENS), 0.5)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))


def multiply(**changes: Any) -> torch.Tensor:
    given: dict[str, Any] = {
        "x": integers(TOKENS, WIDTH), "scale": ROWS, "weight": integers(OUTPUTS, WIDTH),
        "weight_scale": torch.ones(2), "blocks": False,
    }  # fmt: skip
    given |= changes
    x = Activation(given.pop("x"), given.pop("scale"))
    return linear_int8(x, given.pop("weight"), given.pop("weight_scale"), **given)


@pytest.mark.parametrize(
    ("scale", "blocks", "factor"), [(ROWS, False, 0.5), (None, False, 1.0), (BLOCKS, True, 0.5)]
)
def test_scales_of_each_kind(scale: torch.Tensor | None, blocks: bool, factor: float) -> None:
    want = factor * (integers(TOKENS, WIDTH).double() @ integers(OUTPUTS, WIDTH).double().T)
    found = multiply(scale=scale, blocks=blocks).double()
    assert float((found - want).norm() / want.norm()) < 4e-3  # bf16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": torch.zeros(TOKENS, WIDTH)}, r"x is torch\.float32, .* must be torch\.int8"),
        ({"weight": integers(OUTPUTS, 200), "x": integers(TOKENS, 200)}, "multiples of 16 and 16"),
        ({"weight": integers(130, WIDTH)}, "multiples of 16 and 16"),
        (
            {"weight": integers(OUTPUTS, 144), "x": integers(TOKENS, 144), "blocks": True},
            "multiples of 16 and 128",
        ),
        ({"weight_scale": torch.ones(1)}, "one for each 128 rows"),
        ({"scale": None, "blocks": True}, "blocks have scales"),
        ({"scale": ROWS, "blocks": True}, r"x\.scale\.shape = \(5, 1\): must be \(2, 5\)"),
        ({"scale": BLOCKS}, r"x\.scale\.shape = \(2, 5\): must be \(5, 1\)"),
        ({"scale": ROWS[:4]}, r"x\.scale\.shape = \(4, 1\): must be \(5, 1\)"),
        ({"x": integers(TOKENS, 128)}, r"x\.values\.shape = \(5, 128\): must be \[T, 256\]"),
    ],
)
def test_what_it_refuses(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        multiply(**changes)
