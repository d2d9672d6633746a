"""The ops as torch sees them: schemas and shape functions hold, layers export with any number of tokens."""

import pytest
import torch

from engine.ops.hopper.attention import attention
from engine.ops.hopper.chain import chain
from engine.ops.hopper.gate_up import gate_up
from engine.ops.hopper.layer import Batch, run_layers
from engine.ops.hopper.plan import plan
from engine.ops.hopper.qkv import qkv
from engine.ops.hopper.residual import residual
from engine.ops.hopper.rows import embed, rows
from engine.ops.hopper.scratch import scratch
from engine.ops.hopper.supports import MATRICES, LayerShape
from engine.ops.hopper.weights import Factors, prepare_layer
from tools.bench.synthetic import random_source, rope_tables

E4M3, BF16, INT8 = torch.float8_e4m3fn, torch.bfloat16, torch.int8
SHAPE = LayerShape(64, 128, 3, 1, 64, head_norm=True)
# the schema test scales its inputs, which torch cannot do in e4m3
CHECKS = {E4M3: "test_faketensor", BF16: ("test_schema", "test_faketensor")}
CHECKS[INT8] = CHECKS[BF16]


def layers(element):
    factors = Factors() if element == BF16 else Factors(40.0, 40.0, 40.0, 40.0)
    precision = dict.fromkeys(MATRICES, element)
    return [
        prepare_layer(SHAPE, random_source(SHAPE, seed), precision, factors, factors.qkv) for seed in (1, 2)
    ]


@pytest.mark.parametrize("element", [E4M3, BF16, INT8])
def test_schemas_and_shapes(element):
    first, second = layers(element)
    ids, positions = torch.arange(9), torch.arange(9)
    cu_seqlens = torch.tensor([0, 4, 9], dtype=torch.int32)
    table, scales, rope = torch.randn(16, 64).bfloat16(), torch.tensor([40.0, 1.0]), rope_tables(64, 1e4, 16)
    opcheck = torch.library.opcheck
    opcheck(embed, ("", ids, table, scales, element), test_utils=CHECKS[element])
    x, x8, sums, steps = embed("", ids, table, scales, element)
    opcheck(rows, ("", x, scales, element), test_utils=CHECKS[element])
    operand = x if element == BF16 else x8
    head = (first.qkv_scales, first.head_weight, first.bias)
    fused_arguments = ("", operand, sums, first.qkv, *head, *rope, positions, 3, 1, 1e-6, 1e-6, 0, steps)
    opcheck(qkv, fused_arguments, test_utils=CHECKS[element])
    opcheck(plan, ("", cu_seqlens, positions, 3, 1, 4), test_utils=("test_schema",))
    work = plan("", cu_seqlens, positions, 3, 1, 4)
    attended = ("", qkv(*fused_arguments), *work, first.attention_scales, 3, 1, element)
    opcheck(attention, attended, test_utils=CHECKS[element])
    a = attention(*attended)
    added = ("", a, first.o, first.o_scales, x, element, 0, None, sums, 1e-6)
    opcheck(residual, added, test_utils=CHECKS[element])
    gated = ("", operand, sums, first.gate_up, first.gate_up_scales, 1e-6, element, 0, steps)
    opcheck(gate_up, gated, test_utils=CHECKS[element])
    h, blocks = gate_up(*gated)
    of_h = blocks if element == INT8 else None
    added = ("", h, first.down, first.down_scales, x, element, 0, of_h, sums, 1e-6)
    opcheck(residual, added, test_utils=CHECKS[element])
    opcheck(scratch, ("", positions, 1), test_utils=CHECKS[element])
    matrices = (first.o, first.o_scales, first.gate_up, first.gate_up_scales, first.down, first.down_scales)
    following = (second.qkv, second.qkv_scales, second.head_weight, second.bias)
    numbers = (scratch("", positions, 1), 0, 3, 1, 1e-6, 1e-6, 0, sums)
    opcheck(chain, ("", a, x, *matrices, *following, *rope, positions, *numbers), test_utils=CHECKS[element])


class Prefill(torch.nn.Module):
    """Two layers, as an exported model holds them."""

    def __init__(self, chained):
        super().__init__()
        self.layers, self.chained, self.rope = layers(E4M3), chained, rope_tables(64, 1e4, 512)
        self.table = torch.randn(16, 64).bfloat16()
        self.scales = torch.tensor([40.0, 1.0])

    def forward(self, ids, positions, cu_seqlens):
        items, offsets = plan("", cu_seqlens, positions, 3, 1, 4)
        work = scratch("", positions, 1) if self.chained else None
        stream = embed("", ids, self.table, self.scales, E4M3)
        batch = Batch(positions, items, offsets, *self.rope, work)
        last = cu_seqlens[1:].long() - 1
        return run_layers("", SHAPE, self.layers, stream, batch, last=last)[0]


@pytest.mark.parametrize("chained", [True, False])
def test_layers_export_with_any_number_of_tokens(chained):
    model = Prefill(chained)

    def inputs(*lengths):
        positions = torch.cat([torch.arange(n) for n in lengths])
        return positions % 16, positions, torch.tensor([0, *lengths]).cumsum(0).int()

    tokens, samples = torch.export.Dim("tokens", min=2, max=512), torch.export.Dim("bounds", min=3, max=64)
    exported = torch.export.export(
        model, inputs(5, 70), dynamic_shapes=({0: tokens}, {0: tokens}, {0: samples})
    )
    for lengths in ((5, 70), (1, 130, 3, 2)):
        assert torch.equal(exported.module()(*inputs(*lengths)), model(*inputs(*lengths)))
