"""int8 on any machine: what the oracles compute is what engine.quant emulates; stored orders fit together."""

import pytest
import torch

from engine.ops.hopper import layout, tiles
from engine.ops.hopper.gate_up import gate_up, quantise_blocks
from engine.ops.hopper.products import has_factor, num_groups, product
from engine.ops.hopper.residual import residual
from engine.ops.hopper.rows import rows
from engine.ops.hopper.weights import mix, round_to_nearest, store, store_rounded
from engine.quant.int8 import ExactRows, HadamardBlocks, PredictedRows, make_int8
from engine.quant.rows import Rows

INT8 = torch.int8


def test_blocks_are_those_of_the_emulation() -> None:
    torch.manual_seed(0)
    h = torch.randn(9, 384) * torch.logspace(-2, 2, 9)[:, None]
    values, scales = quantise_blocks(h)
    want, want_scales = HadamardBlocks().quantise(Rows(h))
    torch.testing.assert_close(scales.T, want_scales, rtol=1e-5, atol=0)
    back = values[:, layout.inverse(layout.hadamard_columns(384))].int()
    assert (back - want.int()).abs().max() <= 1
    assert (back != want).float().mean() < 2e-3


def test_a_row_of_zeros_stays_one() -> None:
    values, scales = quantise_blocks(torch.zeros(3, 128))
    assert not values.any()
    assert torch.isfinite(scales).all()


def test_exact_rows_are_those_of_the_emulation() -> None:
    x = torch.randn(7, 96).bfloat16()
    x[3] = 0
    x8, sums, steps = rows("", x, torch.ones(2), INT8)
    want, want_steps = ExactRows().quantise(Rows(x.float()))
    assert torch.equal(x8, want)
    assert torch.equal(steps[:, None], want_steps)
    torch.testing.assert_close(sums.sum(-1), x.float().square().sum(-1))


def test_predicted_rows_are_those_of_the_emulation() -> None:
    """down in blocks, then the residual quantised by its length before."""
    torch.manual_seed(1)
    m, n, k, width, eps = 20, 224, 256, 5.0, 1e-6
    x, h, w = torch.randn(m, n).bfloat16(), torch.randn(m, k), torch.randn(n, k) / 16
    matrix = make_int8(HadamardBlocks(), w, None)
    want = x.float() + matrix(Rows(h))
    before = (x.float().square().mean(-1, keepdim=True) + eps).sqrt()
    want8, want_steps = PredictedRows(width).quantise(Rows(want, before, before))

    stored, scales = store(mix(w), layout.residual_rows(n), INT8, columns=layout.hadamard_columns(k))
    values, blocks = quantise_blocks(h)
    sums = torch.zeros(m, tiles.PARTIALS)
    sums[:, 0] = x.float().square().sum(-1)
    factor = torch.cat([scales, torch.tensor([127.0 / width])])
    y, x8, _, steps = residual("", values, stored, factor, x, INT8, 0, blocks, sums, eps)
    torch.testing.assert_close(y.float(), want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(steps[:, None], want_steps, rtol=1e-5, atol=0)
    assert (x8.int() - want8.int()).abs().max() <= 1
    assert (x8 != want8).float().mean() < 2e-2


@pytest.mark.parametrize(
    "order",
    [
        layout.gate_up_rows(256, torch.bfloat16),
        layout.gate_up_rows(256, torch.float8_e4m3fn),
        layout.hadamard_rows(256),
    ],
)
def test_gate_and_up_keep_their_scales(order: torch.Tensor) -> None:
    torch.manual_seed(2)
    w = torch.randn(512, 64) * torch.tensor([1.0, 10.0, 0.1, 3.0]).repeat_interleave(128)[:, None]
    matrix = round_to_nearest(w)
    stored, scales = store_rounded(matrix, order)
    a, steps = torch.randint(-127, 128, (5, 64), dtype=INT8), torch.rand(5)
    y = product(a, stored, scales, steps, paired=True)[:, layout.inverse(order)]
    want = (a.float() @ matrix.values.float().T) * matrix.scales.repeat_interleave(128) * steps[:, None]
    torch.testing.assert_close(y, want)


def test_gate_up_hands_over_what_down_wants() -> None:
    torch.manual_seed(3)
    w, a, steps = (
        torch.randn(512, 64) / 8,
        torch.randint(-127, 128, (5, 64), dtype=INT8),
        torch.full((5,), 0.02),
    )
    stored, scales = store(w, layout.hadamard_rows(256), INT8)
    sums = torch.zeros(5, tiles.PARTIALS)
    sums[:, 0] = 64.0
    h8, blocks = gate_up("", a, sums, stored, torch.cat([scales, torch.ones(1)]), 0.0, INT8, 0, steps)
    down = torch.randn(96, 256) / 16
    stored, scales = store(mix(down), layout.residual_rows(96), INT8, columns=layout.hadamard_columns(256))
    y = product(h8, stored, scales, block_scales=blocks)[:, layout.inverse(layout.residual_rows(96))]
    gate, up = ((a.float() * 0.02) @ w.T).chunk(2, 1)
    want = (torch.nn.functional.silu(gate) * up) @ down.T
    assert (y - want).norm() < 2e-2 * want.norm()


def test_scales_say_how_rows_are_quantised() -> None:
    w = torch.zeros(300, 64, dtype=INT8)
    assert num_groups(300, INT8) == 3
    assert num_groups(300, torch.bfloat16) == 1
    assert has_factor(torch.ones(4), w)
    assert not has_factor(torch.ones(3), w)
