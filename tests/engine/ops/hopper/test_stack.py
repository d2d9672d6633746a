"""A run of layers as one op: schema and shapes hold; it is the layers one by one, from ids or from rows."""

from __future__ import annotations

import pytest
import torch

from engine.ops.hopper.layer import Batch, run_layers
from engine.ops.hopper.plan import plan
from engine.ops.hopper.rows import embed, rows
from engine.ops.hopper.stack import flatten, names, stack, unflatten
from engine.ops.hopper.supports import MATRICES, LayerShape
from engine.ops.hopper.weights import Factors, prepare_layer
from tools.bench.synthetic import random_source, rope_tables

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
SHAPES = {
    "norm": LayerShape(64, 128, 3, 1, 64, head_norm=True),
    "bias": LayerShape(96, 64, 2, 2, 64, bias=True),
}
IDS, POSITIONS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5]), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4])
CU_SEQLENS = torch.tensor([0, 4, 9], dtype=torch.int32)
SCALES = torch.tensor([40.0, 1.0])
PREFIXES = torch.tensor([[1, 2], [-1, 3]], dtype=torch.int32)


def make(kind: str, element: torch.dtype, count: int):
    shape = SHAPES[kind]
    factors = Factors() if element == BF16 else Factors(40.0, 40.0, 40.0, 40.0)
    layers = [
        prepare_layer(
            shape, random_source(shape, seed), dict.fromkeys(MATRICES, element), factors, factors.qkv
        )
        for seed in range(count)
    ]
    torch.manual_seed(0)
    return shape, layers, torch.randn(16, shape.hidden).bfloat16(), rope_tables(64, 1e4, 16)


def constant_prefix(shape: LayerShape, count: int):
    return torch.randn(count, 2, 5, shape.num_kv, shape.head_dim).bfloat16()


def arguments(kind: str, element: torch.dtype, count: int, last=None, ids=IDS):
    shape, layers, table, rope = make(kind, element, count)
    source = table if ids is not None else table[IDS]
    numbers = (shape.bias, shape.num_q, shape.num_kv, shape.eps, shape.head_norm)
    return ("", source, ids, SCALES, POSITIONS, CU_SEQLENS, last, *rope, flatten(layers), *numbers)


@pytest.mark.parametrize("ids", [IDS, None])
@pytest.mark.parametrize("last", [None, torch.tensor([3, 8])])
@pytest.mark.parametrize("kind", SHAPES)
def test_schema_and_shapes(kind: str, last, ids) -> None:
    torch.library.opcheck(
        stack, arguments(kind, BF16, 2, last, ids), test_utils=("test_schema", "test_faketensor")
    )
    torch.library.opcheck(stack, arguments(kind, E4M3, 1, last, ids), test_utils=("test_faketensor",))


@pytest.mark.parametrize("kind", SHAPES)
def test_schema_with_prefixes(kind: str) -> None:
    given = (*arguments(kind, BF16, 2), PREFIXES, constant_prefix(SHAPES[kind], 2))
    torch.library.opcheck(stack, given, test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ValueError, match="both or neither"):
        stack(*given[:-1])


@pytest.mark.parametrize("element", [E4M3, BF16])
@pytest.mark.parametrize("kind", SHAPES)
def test_every_layer_gets_its_part_of_the_constant_prefix(kind: str, element: torch.dtype) -> None:
    shape, layers, table, rope = make(kind, element, 3)
    constant = constant_prefix(shape, 3)
    items, offsets = plan("", CU_SEQLENS, POSITIONS, shape.num_q, shape.num_kv, 4, PREFIXES)
    stream = embed("", IDS, table, SCALES, element)
    for index, (layer, following) in enumerate(zip(layers, [*layers[1:], layers[0]], strict=True)):
        batch = Batch(POSITIONS, items, offsets, *rope, constant=constant[index : index + 1])
        operand = following.qkv.dtype if index < 2 else BF16
        stream = run_layers("", shape, [layer], stream, batch, next_operand=operand)
    given = (*arguments(kind, element, 3), PREFIXES, constant)
    assert torch.equal(stack(*given), stream[0])
    assert not torch.equal(stack(*given[:-2]), stream[0])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("element", [E4M3, BF16])
@pytest.mark.parametrize("kind", SHAPES)
def test_it_is_the_layers_one_by_one(kind: str, element: torch.dtype, count: int) -> None:
    shape, layers, table, rope = make(kind, element, count)
    items, offsets = plan("", CU_SEQLENS, POSITIONS, shape.num_q, shape.num_kv, 4)
    batch = Batch(POSITIONS, items, offsets, *rope)
    last = torch.tensor([3, 8])
    want = run_layers("", shape, layers, embed("", IDS, table, SCALES, element), batch, last=last)[0]
    assert torch.equal(stack(*arguments(kind, element, count, last)), want)
    stream = (table[IDS], *rows("", table[IDS], SCALES, element))
    want = run_layers("", shape, layers, stream, batch)[0]
    assert torch.equal(stack(*arguments(kind, element, count, ids=None)), want)


@pytest.mark.parametrize("kind", SHAPES)
def test_flattened_weights_come_back(kind: str) -> None:
    _, layers, _, _ = make(kind, BF16, 2)
    has_bias = SHAPES[kind].bias
    flat = flatten(layers)
    assert len(flat) == 2 * len(names(has_bias)) == (22 if has_bias else 20)
    for found, want in zip(unflatten(flat, has_bias), layers, strict=True):
        assert all(getattr(found, name) is getattr(want, name) for name in names(True))
    with pytest.raises(ValueError, match="wanted a multiple of"):
        unflatten(flat[:-1], has_bias)
