"""boundgen::product_add_norm on the CPU: by the two operations that do the same; which way rows would go."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.ops.portable import product_norm
from engine.ops.portable.linear import linear_e4m3
from engine.ops.portable.norm import add_rms_norm
from engine.ops.portable.product_norm import product_add_norm
from engine.ops.portable.quantised import E4M3, Activation
from engine.ops.portable.split_product import ROWS, choose_split, pays_to_split
from engine.ops.portable.tiles import MULTIPROCESSORS

OUTPUTS, WIDTH = 48, 80
Drawn = tuple[Activation, Tensor, Tensor | None, Tensor, Tensor]


def draw(rows: int, quantised: bool) -> Drawn:
    torch.manual_seed(0)
    inputs, weight = torch.randn(rows, WIDTH), torch.randn(OUTPUTS, WIDTH)
    stream, gain = torch.randn(rows, OUTPUTS).bfloat16(), torch.rand(OUTPUTS).bfloat16()
    if not quantised:
        return Activation(inputs.bfloat16()), weight.bfloat16(), None, stream, gain
    scales = torch.tensor([0.3]), torch.tensor([0.07])
    return Activation(inputs.to(E4M3), scales[0]), weight.to(E4M3), scales[1], stream, gain


@pytest.mark.parametrize("rows", [1, 7, 100, 300])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("scale", [None, torch.tensor([0.02])])
def test_equals_product_and_norm_to_the_bit(rows: int, quantised: bool, scale: Tensor | None) -> None:
    inputs, weight, weight_scale, stream, gain = draw(rows, quantised)
    if weight_scale is None:
        delta = F.linear(inputs.values, weight)
    else:
        delta = linear_e4m3(inputs, weight, weight_scale)
    mode = "none" if scale is None else "static"
    want = add_rms_norm(stream, delta, gain, 1e-6, quantise=mode, scale=scale)
    got = product_add_norm(inputs, weight, weight_scale, stream, gain, 1e-6, scale=scale)
    assert torch.equal(got[0], want[0])
    assert got[1].values.dtype == (torch.bfloat16 if scale is None else E4M3)
    assert torch.equal(got[1].values.view(torch.uint8), want[1].values.view(torch.uint8))
    assert got[1].scale is scale


def test_scales_come_together() -> None:
    inputs, weight, weight_scale, stream, gain = draw(2, True)
    with pytest.raises(ValueError, match="weight_scale"):
        product_add_norm(inputs, weight, None, stream, gain, 1e-6)
    by_token = Activation(inputs.values, torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"inputs.scale.shape = \(2, 1\)"):
        product_add_norm(by_token, weight, weight_scale, stream, gain, 1e-6)


@pytest.mark.parametrize("quantised", [False, True])
def test_is_exported_for_any_number_of_rows(quantised: bool) -> None:
    class Step(nn.Module):
        def forward(self, values: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
            inputs, (_, weight, weight_scale, _, gain) = Activation(values, drawn[0].scale), drawn
            total, normed = product_add_norm(inputs, weight, weight_scale, stream, gain, 1e-6, scale=scale)
            return total, normed.values

    scale, drawn = torch.tensor([0.02]), draw(9, quantised)
    rows = torch.export.Dim("rows", min=2, max=500)
    given = drawn[0].values, drawn[3]
    exported = torch.export.export(Step(), given, dynamic_shapes=({0: rows}, {0: rows})).module()
    more = draw(400, quantised)
    total, normed = exported(more[0].values, more[3])
    assert (total.dtype, normed.dtype, normed.shape) == (torch.bfloat16, E4M3, (400, OUTPUTS))


@pytest.mark.parametrize(
    ("width", "outputs", "quantised"),
    [(4864, 896, True), (4864, 896, False), (896, 896, False), (3072, 1024, True), (576, 576, False)],
)
def test_few_rows_pay_on_hopper(width: int, outputs: int, quantised: bool) -> None:
    assert pays_to_split(100, width, outputs, quantised, 90)
    assert not pays_to_split(400, width, outputs, quantised, 90)
    assert not any(pays_to_split(100, width, outputs, quantised, arch) for arch in (80, 89, 100, 120))


def test_what_is_not_served_or_was_not_measured_goes_to_the_library() -> None:
    assert not pays_to_split(100, 4864 + 64, 896, True, 90)  # not whole steps
    assert not pays_to_split(100, 4864, 896 + 32, True, 90)  # not whole tiles
    assert not pays_to_split(100, 8192, 2048, True, 90)  # a large weight


@pytest.mark.parametrize(("rows", "way"), [(2, "split"), (320, "split"), (321, "library")])
def test_rows_choose_the_way(rows: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(product_norm, "launch", lambda *_: taken.append("split"))
    monkeypatch.setattr(product_norm, "_apart", lambda *_: taken.append("library"))
    monkeypatch.setattr(product_norm, "capability", lambda _: 90)
    weight: Any = torch.empty(896, 4864, device="meta")
    one = torch.ones(1)
    product_norm._by_rows(torch.empty(rows, 4864, device="meta"), one, weight, one, weight, weight, None, 0.0)
    assert taken == [way]


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("rows", [1, 64, 65, 128, 129, 200, 256, 1000])
@pytest.mark.parametrize(("outputs", "width"), [(896, 4864), (1024, 3072), (576, 1536), (64, 128)])
def test_parts_run_at_once_and_none_is_empty(rows: int, quantised: bool, outputs: int, width: int) -> None:
    split = choose_split(rows, width, outputs, quantised, 90)
    grid = split.grid(rows, outputs)
    assert split.splits == 1 or math.prod(grid) <= MULTIPROCESSORS
    assert 1 <= split.splits <= width // split.depth
    assert outputs % split.columns == 0 == width % split.depth
    assert grid[2] == -(-rows // ROWS)
