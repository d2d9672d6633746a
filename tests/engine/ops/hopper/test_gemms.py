"""The fused GEMMs on the GPU against their oracles: every model's shape, ragged rows, poisoned outputs, equal
bits.
"""

import pytest
import torch

from engine.ops.hopper import tiles
from engine.ops.hopper.gate_up import gate_up, gate_up_reference
from engine.ops.hopper.qkv import qkv, qkv_reference
from engine.ops.hopper.quantise import quantise
from engine.ops.hopper.residual import residual, residual_reference
from tools.bench.synthetic import MODELS, rope_tables

pytestmark = pytest.mark.gpu
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
# bf16 results: their own rounding (2^-9) and the tensor cores' shorter 8-bit sums;
# e4m3 results: a few round the other way (2^-4 each)
TOLERANCE = {BF16: 4e-3, E4M3: 2e-2}
ROWS = (1, 77, 256, 1000, 4096)


def operands(rows: int, outputs: int, depth: int, element: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + outputs)
    a = torch.randn(rows, depth, device="cuda") * (20 if element == E4M3 else 1)
    w = torch.randn(outputs, depth, device="cuda") * (40 if element == E4M3 else 0.05)
    return quantise(a, element), quantise(w, element)


def partials(rows: int, hidden: int) -> torch.Tensor:
    return torch.rand(rows, tiles.PARTIALS, device="cuda") * (2 * hidden / tiles.PARTIALS) + 1e-3


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("matrix", ["o", "down"])
@pytest.mark.parametrize("element", [E4M3, BF16])
@pytest.mark.parametrize("model", MODELS)
def test_residual(model, element, matrix, rows, library, poison, relative_error):
    n, k = MODELS[model].layer.matrices()[matrix]
    a, w = operands(rows, n, k, element)
    x = torch.randn(rows, n, device="cuda").bfloat16()
    scales = torch.tensor([1e-4 if element == E4M3 else 0.1, 30.0], device="cuda")
    for operand in (E4M3, BF16):
        arguments = (library, a, w, scales, x, operand)
        poison()
        y, x8, sums, _ = residual(*arguments)
        want, want8, want_sums, _ = residual_reference(*arguments)
        assert relative_error(y, want) < TOLERANCE[BF16]
        assert relative_error(sums, want_sums) < 1e-3
        assert ((want_sums == 0) == (sums == 0)).all()
        assert x8.shape == want8.shape
        if operand == E4M3:
            assert relative_error(x8.float(), want8.float()) < TOLERANCE[E4M3]
        poison()
        again = residual(*arguments)
        assert torch.equal(again[0], y)
        assert torch.equal(again[2], sums)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("output", [E4M3, BF16])
@pytest.mark.parametrize("element", [E4M3, BF16])
@pytest.mark.parametrize("model", MODELS)
def test_gate_up(model, element, output, rows, library, poison, relative_error):
    shape = MODELS[model].layer
    n, k = shape.matrices()["gate_up"]
    a, w = operands(rows, n, k, element)
    scales = torch.tensor([1e-4 if element == E4M3 else 0.7, 50.0], device="cuda")
    arguments = (library, a, partials(rows, k), w, scales, shape.eps, output)
    poison()
    h, _ = gate_up(*arguments)
    assert relative_error(h.float(), gate_up_reference(*arguments)[0].float()) < TOLERANCE[output]
    poison()
    assert torch.equal(gate_up(*arguments)[0].view(torch.uint8), h.view(torch.uint8))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("element", [E4M3, BF16])
@pytest.mark.parametrize("model", MODELS)
def test_qkv(model, element, rows, library, poison, relative_error):
    shape = MODELS[model].layer
    n, k = shape.matrices()["qkv"]
    a, w = operands(rows, n, k, element)
    scales = torch.tensor([1e-4 if element == E4M3 else 0.7, 1.0], device="cuda")
    cosines, sines = rope_tables(shape.head_dim, 1e4, 600, "cuda")
    positions = torch.randint(0, 600, (rows,), device="cuda")
    head_weight = torch.rand(2, shape.head_dim, device="cuda") + 0.5
    bias = torch.randn(n, device="cuda") if shape.bias else None
    head_eps = shape.eps if shape.head_norm else -1.0
    tensors = (a, partials(rows, k), w, scales, head_weight, bias, cosines, sines, positions)
    arguments = (library, *tensors, shape.num_q, shape.num_kv, shape.eps, head_eps)
    poison()
    out = qkv(*arguments)
    assert relative_error(out, qkv_reference(*arguments)) < TOLERANCE[BF16]
    poison()
    assert torch.equal(qkv(*arguments), out)


def test_every_tile_width_gives_the_same(library, monkeypatch, relative_error):
    """Widths that choose_width would not take at this size, ragged last tiles among them."""
    a, w = operands(300, 960, 640, E4M3)
    x, scales = torch.randn(300, 960, device="cuda").bfloat16(), torch.tensor([1e-4, 30.0], device="cuda")
    for width in (128, 192, 256):
        monkeypatch.setattr(tiles, "choose_width", lambda *_, width=width: width)
        arguments = (library, a, w, scales, x, E4M3)
        for have, want in zip(residual(*arguments)[:3], residual_reference(*arguments)[:3], strict=True):
            assert relative_error(have.float(), want.float()) < TOLERANCE[E4M3]


def test_a_share_of_the_chip_gives_the_same_bits(library):
    a, w = operands(4096, 1024, 3072, E4M3)
    x, scales = torch.randn(4096, 1024, device="cuda").bfloat16(), torch.tensor([1e-4, 30.0], device="cuda")
    whole, share = residual(library, a, w, scales, x, E4M3), residual(library, a, w, scales, x, E4M3, 66)
    assert torch.equal(whole[0], share[0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("w", lambda t: t.t()),
        ("w", lambda t: t[:, :-16].contiguous()),
        ("x", lambda t: t.float()),
        ("scales", lambda t: t[:1]),
    ],
)
def test_a_wrong_argument_is_named(name, change, library):
    a, w = operands(64, 256, 256, E4M3)
    given = {
        "a": a,
        "w": w,
        "scales": torch.ones(2, device="cuda"),
        "x": torch.zeros(64, 256, device="cuda").bfloat16(),
    }
    given[name] = change(given[name])
    with pytest.raises(ValueError, match=f"^{name} (is|has)"):
        residual(library, given["a"], given["w"], given["scales"], given["x"], E4M3)
