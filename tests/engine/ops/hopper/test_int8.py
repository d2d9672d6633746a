"""The fused GEMMs in int8 on the GPU against their oracles: bit for bit where scales are powers of two, every
model's shape, ragged rows, poisoned outputs, equal bits.
"""

import pytest
import torch

from engine.ops.hopper import tiles
from engine.ops.hopper.gate_up import gate_up, gate_up_reference
from engine.ops.hopper.products import num_groups
from engine.ops.hopper.qkv import qkv, qkv_reference
from engine.ops.hopper.residual import residual, residual_reference
from engine.ops.hopper.rows import rows, rows_reference
from tools.bench.synthetic import MODELS, rope_tables

pytestmark = pytest.mark.gpu
E4M3, BF16, INT8 = torch.float8_e4m3fn, torch.bfloat16, torch.int8
ROWS = (1, 77, 256, 1000, 4096)
BF16_TOLERANCE = 4e-3
GATED_TOLERANCE = 2e-2  # of int8 results: tanh.approx makes one in twenty round the other way


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, device="cuda", dtype=torch.int8)


def operands(rows: int, outputs: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + outputs)
    return integers(rows, depth), integers(outputs, depth)


def scales_of(w: torch.Tensor, unit: float, factor: float | None) -> torch.Tensor:
    groups = torch.rand(num_groups(w.shape[0], w.dtype), device="cuda") * unit + unit / 2
    return groups if factor is None else torch.cat([groups, torch.tensor([factor], device="cuda")])


def partials(rows: int, hidden: int) -> torch.Tensor:
    return torch.rand(rows, tiles.PARTIALS, device="cuda") * (2 * hidden / tiles.PARTIALS) + 1e-3


def assert_near(have: torch.Tensor, want: torch.Tensor, share: float = 1e-3) -> None:
    """int8 values: neighbours, and few of them."""
    off = (have.int() - want.int()).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() < share


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 576, 1536), (300, 960, 640), (500, 1536, 384), (129, 1024, 128)]
)
def test_sums_are_exact(m, n, k, blocks, library, poison):
    a, w = operands(m, n, k)
    x = torch.zeros(m, n, device="cuda").bfloat16()
    scales = torch.exp2(-(torch.arange(num_groups(n, INT8), device="cuda") % 5).float())
    of_blocks = torch.exp2(-(torch.arange(k // 128 * m, device="cuda") % 7).float()).view(-1, m)
    arguments = (library, a, w, scales, x, BF16, 0, of_blocks if blocks else None)
    poison()
    y = residual(*arguments)[0]
    assert torch.equal(y, residual_reference(*arguments)[0])


@pytest.mark.parametrize("tile", [128, 192, 256])
@pytest.mark.parametrize("blocks", [1, 2, 3, 32, 33, 34, 66])
def test_blocks_are_exact_in_every_tile_width(blocks, tile, library, poison, monkeypatch):
    """Of few and many blocks: their scales are loaded 32 at a time."""
    monkeypatch.setattr(tiles, "choose_width", lambda *_: tile)
    m, n, k = 300, 960, 128 * blocks
    torch.manual_seed(blocks)
    a, w = (torch.randint(-3, 4, (size, k), device="cuda", dtype=torch.int8) for size in (m, n))
    x, scales = torch.zeros(m, n, device="cuda").bfloat16(), torch.ones(num_groups(n, INT8), device="cuda")
    of_blocks = torch.exp2(-torch.randint(0, 6, (blocks, m), device="cuda").float())
    arguments = (library, a, w, scales, x, BF16, 0, of_blocks)
    poison()
    y, _, sums, _ = residual(*arguments)
    want, _, want_sums, _ = residual_reference(*arguments)
    assert torch.equal(y, want)
    torch.testing.assert_close(sums, want_sums, rtol=1e-4, atol=0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("matrix", ["o", "down"])
@pytest.mark.parametrize("model", MODELS)
def test_residual(model, matrix, rows, library, poison, relative_error):
    n, k = MODELS[model].layer.matrices()[matrix]
    a, w = operands(rows, n, k)
    x, blocks = torch.randn(rows, n, device="cuda").bfloat16(), None
    if matrix == "down":
        blocks = torch.rand(k // 128, rows, device="cuda") + 0.5
    scales = scales_of(w, 1e-5, 20.0)
    for operand in (INT8, E4M3, BF16):
        arguments = (library, a, w, scales, x, operand, 0, blocks, partials(rows, n), 1e-6)
        poison()
        y, x8, sums, steps = residual(*arguments)
        want, want8, want_sums, want_steps = residual_reference(*arguments)
        assert relative_error(y, want) < BF16_TOLERANCE
        assert relative_error(sums, want_sums) < 1e-3
        assert ((want_sums == 0) == (sums == 0)).all()
        if operand == INT8:
            assert_near(x8, want8)
            torch.testing.assert_close(steps, want_steps, rtol=1e-5, atol=0)
        elif operand == E4M3:
            assert relative_error(x8.float(), want8.float()) < 2e-2
        poison()
        again = residual(*arguments)
        assert torch.equal(again[1].view(torch.uint8), x8.view(torch.uint8))
        assert all(torch.equal(again[i], found) for i, found in ((0, y), (2, sums), (3, steps)))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("output", [INT8, BF16])
@pytest.mark.parametrize("element", [INT8, E4M3, BF16])
@pytest.mark.parametrize("model", MODELS)
def test_gate_up(model, element, output, rows, library, poison, relative_error):
    shape = MODELS[model].layer
    n, k = shape.matrices()["gate_up"]
    a, w = operands(rows, n, k)
    steps = torch.rand(rows, device="cuda") + 0.5
    if element != INT8:
        a, w, steps = (a / 64).to(element), (w / 1024).to(element), None
    scales = scales_of(w, 1e-5 if element == INT8 else 0.7, 1.0)
    arguments = (library, a, partials(rows, k), w, scales, shape.eps, output, 0, steps)
    poison()
    h, blocks = gate_up(*arguments)
    want, want_blocks = gate_up_reference(*arguments)
    if output == BF16:
        assert relative_error(h, want) < BF16_TOLERANCE
    else:
        assert (h.int() - want.int()).abs().max() <= 2
        assert relative_error(blocks, want_blocks) < 5e-3
        values = h.unflatten(1, (-1, 128)) * blocks.T[:, :, None]
        assert (
            relative_error(values, want.unflatten(1, (-1, 128)) * want_blocks.T[:, :, None]) < GATED_TOLERANCE
        )
    poison()
    again, again_blocks = gate_up(*arguments)
    assert torch.equal(again, h)
    assert torch.equal(again_blocks, blocks)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", MODELS)
def test_qkv(model, rows, library, poison, relative_error):
    shape = MODELS[model].layer
    n, k = shape.matrices()["qkv"]
    a, w = operands(rows, n, k)
    cosines, sines = rope_tables(shape.head_dim, 1e4, 600, "cuda")
    positions = torch.randint(0, 600, (rows,), device="cuda")
    head_weight = torch.rand(2, shape.head_dim, device="cuda") + 0.5
    bias = torch.randn(n, device="cuda") if shape.bias else None
    head_eps = shape.eps if shape.head_norm else -1.0
    scales, steps = scales_of(w, 1e-5, 1.0), torch.rand(rows, device="cuda") + 0.5
    tensors = (a, partials(rows, k), w, scales, head_weight, bias, cosines, sines, positions)
    arguments = (library, *tensors, shape.num_q, shape.num_kv, shape.eps, head_eps, 0, steps)
    poison()
    out = qkv(*arguments)
    assert relative_error(out, qkv_reference(*arguments)) < BF16_TOLERANCE
    poison()
    assert torch.equal(qkv(*arguments), out)


@pytest.mark.parametrize("width", [128, 192, 256])
def test_every_tile_width_finds_its_groups(width, library, monkeypatch):
    """Groups of 128 rows under tiles of 192, ragged last tiles among them."""
    a, w = operands(300, 960, 640)
    x, scales = torch.zeros(300, 960, device="cuda").bfloat16(), scales_of(w, 1e-4, None)
    monkeypatch.setattr(tiles, "choose_width", lambda *_: width)
    arguments = (library, a, w, torch.exp2(scales.log2().round()), x, BF16)
    assert torch.equal(residual(*arguments)[0], residual_reference(*arguments)[0])


@pytest.mark.parametrize("width", [576, 1024, 1536])
def test_exact_rows(width, library, poison):
    x = (torch.randn(77, width, device="cuda") * torch.logspace(-3, 3, 77, device="cuda")[:, None]).bfloat16()
    x[5] = 0
    scales = torch.ones(2, device="cuda")
    poison()
    x8, sums, steps = rows(library, x, scales, INT8)
    want8, want_sums, want_steps = rows_reference(library, x.cpu(), scales.cpu(), INT8)
    assert torch.equal(x8.cpu(), want8)
    assert torch.equal(steps.cpu(), want_steps)
    torch.testing.assert_close(sums.cpu(), want_sums, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scales": lambda t: t[:-2]}, "^scales is"),
        ({"before": lambda _: None}, "^before"),
        ({"blocks": lambda t: t[:, 1:].contiguous()}, "^block_scales is"),
        ({"scales": lambda t: t[:-1]}, "wanted a factor"),
    ],
)
def test_a_wrong_argument_is_named(change, reason, library):
    a, w = operands(64, 256, 256)
    given = {
        "scales": scales_of(w, 1e-5, 1.0),
        "before": partials(64, 256),
        "blocks": torch.ones(2, 64).cuda(),
    }
    given |= {name: function(given[name]) for name, function in change.items()}
    x = torch.zeros(64, 256, device="cuda").bfloat16()
    with pytest.raises(ValueError, match=reason):
        residual(library, a, w, given["scales"], x, INT8, 0, given["blocks"], given["before"], 1e-6)
