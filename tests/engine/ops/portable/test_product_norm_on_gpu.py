"""boundgen::product_add_norm on a real device: against the two operations that do the same, in float64, again
and again, captured; more rows than are split go by those two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.ops.portable import product_norm
from engine.ops.portable.linear import quantise_weight
from engine.ops.portable.product_norm import product_add_norm
from engine.ops.portable.quantised import E4M3, Activation, dequantise, quantise_static
from engine.ops.portable.split_product import MOST_ROWS, pays_to_split, serves_split

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
SHAPES = {
    "qwen2-down": (896, 4864),
    "qwen2-output": (896, 896),
    "qwen3-down": (1024, 3072),
    "qwen3-output": (1024, 2048),
    "smollm2-down": (576, 1536),
    "smollm2-output": (576, 576),
}
ROWS = (1, 7, 64, 100, 128, 129, 200, 256, 257, 1000)
# The stream's rounding to bf16; a product that rounds the other way moves a few of these, as of e4m3 steps.
TOLERANCE = {torch.bfloat16: 5e-3, E4M3: 2.5e-2}
Given = tuple[Any, ...]


def draw(shape: str, rows: int, quantised: bool, static: bool) -> Given:
    outputs, width = SHAPES[shape]
    inputs, weight = torch.randn(rows, width, device="cuda"), torch.randn(outputs, width, device="cuda")
    stream, gain = torch.randn(rows, outputs, device="cuda"), torch.rand(outputs, device="cuda")
    scale = torch.tensor([5 / 448], device="cuda") if static else None
    operands: Given = (inputs.bfloat16(), None, (weight * width**-0.5).bfloat16(), None)
    if quantised:
        input_scale = torch.tensor([4 / 448], device="cuda")
        narrow = quantise_weight(weight * width**-0.5)
        operands = (quantise_static(inputs, input_scale), input_scale, *narrow)
    return (*operands, stream.bfloat16(), gain.bfloat16(), scale, 1e-6)


def bits(found: tuple[Tensor, Tensor]) -> list[Tensor]:
    return [x.view(torch.uint8) for x in found]


def exactly(given: Given) -> tuple[Tensor, Tensor]:
    """Total and norm, as values, by float64 sums."""
    inputs, input_scale, weight, weight_scale, stream, gain, scale, eps = given
    delta = dequantise(inputs, input_scale).double() @ dequantise(weight, weight_scale).double().T
    total = stream.double() + delta.bfloat16().double()
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * gain.double()
    return total, normed if scale is None else normed / scale


def near(got: Tensor, want: Tensor, tolerance: float) -> None:
    error = (got.double() - want.double()).norm() / want.double().norm()
    assert error < tolerance, float(error)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_split_products_do_what_the_library_does(shape: str, quantised: bool, static: bool) -> None:
    outputs, width = SHAPES[shape]
    if not serves_split(width, outputs, quantised):
        pytest.skip("not whole steps: goes to the library")
    for rows in ROWS:
        given = draw(shape, rows, quantised, static)
        got, again, want = (
            way(*given) for way in (product_norm.launch, product_norm.launch, product_norm._apart)
        )
        assert all(map(torch.equal, bits(got), bits(again)))
        assert [x.dtype for x in got] == [x.dtype for x in want]
        for mine, theirs, exact in zip(got, want, exactly(given), strict=True):
            near(mine, theirs, TOLERANCE[mine.dtype])
            near(mine, exact, 4e-3 if mine.dtype == torch.bfloat16 else 4e-2)  # an e4m3 step is 1/8


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_operation_takes_the_way_of_its_rows(shape: str, quantised: bool) -> None:
    outputs, width = SHAPES[shape]
    arch = product_norm.capability(torch.empty(0, device="cuda"))
    for rows in (100, 257, MOST_ROWS, MOST_ROWS + 1, 700):
        given = draw(shape, rows, quantised, quantised)
        splits = pays_to_split(rows, width, outputs, quantised, arch)
        way = product_norm.launch if splits else product_norm._apart
        inputs, input_scale, weight, weight_scale, stream, gain, scale, eps = given
        total, normed = product_add_norm(
            Activation(inputs, input_scale), weight, weight_scale, stream, gain, eps, scale=scale
        )
        assert all(map(torch.equal, bits((total, normed.values)), bits(way(*given))))


@pytest.mark.parametrize(("rows", "quantised"), [(100, True), (300, True), (100, False)])
def test_replays_of_a_graph_are_what_it_captured(rows: int, quantised: bool) -> None:
    run = torch.ops.boundgen.product_add_norm if quantised else product_norm.launch
    given = draw("qwen2-down", rows, quantised, quantised)
    eager = run(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(*given)
    for fresh in (False, True):
        if fresh:
            more = draw("qwen2-down", rows, quantised, quantised)
            given[0].view(torch.uint8).copy_(more[0].view(torch.uint8))
            given[4].copy_(more[4])
            eager = run(*given)
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            assert all(map(torch.equal, bits(captured), bits(eager)))
