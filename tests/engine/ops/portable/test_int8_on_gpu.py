"""int8 kernels on a real device against their oracles on the CPU: integers to the bit, equal bits twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.ops.portable import reference
from engine.ops.portable.activation import silu_mul
from engine.ops.portable.attention import tile_tokens, varlen_attention
from engine.ops.portable.attention_tiles import attention_tiles
from engine.ops.portable.gate_up import gate_up
from engine.ops.portable.linear import quantise_weight
from engine.ops.portable.linear_int8 import linear_int8
from engine.ops.portable.norm import add_rms_norm
from engine.ops.portable.quantised import Activation, quantise_per_token

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
TOKENS = (2, 77, 1000)
SHAPES = {  # heads, kv heads, head_dim, hidden, intermediate
    "qwen3": (16, 8, 128, 1024, 3072),
    "qwen2": (14, 2, 64, 896, 4864),
    "smollm2": (9, 3, 64, 576, 1536),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> tuple[int, int, int, int, int]:
    return SHAPES[request.param]


def draw(*size: int) -> Tensor:
    return torch.randn(size).bfloat16()


def integers(*size: int) -> Tensor:
    return torch.randint(-128, 128, size, dtype=torch.int8)


def powers(*size: int) -> Tensor:
    """Scales that no product with them rounds."""
    return torch.exp2(torch.randint(-2, 3, size).float())


def on_device(*args: Any) -> tuple[Any, ...]:
    return tuple(each.cuda() if isinstance(each, Tensor) else each for each in args)


def near_integers(got: Tensor, want: Tensor, share: float) -> None:
    """int8: the same, but for a share that fell to the next step."""
    apart = (got.cpu().int() - want.int()).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).float().mean()) <= share


def near(got: Tensor, want: Tensor, tolerance: float) -> None:
    error = (got.cpu().float() - want.float()).norm() / want.float().norm()
    assert float(error) < tolerance


@pytest.mark.parametrize("kind", ["qkv", "o", "down"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_products_are_exact(tokens: int, kind: str, shape: Any) -> None:
    heads, kv, dim, hidden, middle = shape
    outputs, width = {
        "qkv": ((heads + 2 * kv) * dim, hidden), "o": (hidden, heads * dim), "down": (hidden, middle),
    }[kind]  # fmt: skip
    scale = {"qkv": powers(tokens, 1), "o": None, "down": powers(width // 128, tokens)}[kind]
    bias, residual = (draw(outputs), None) if kind == "qkv" else (None, draw(tokens, outputs))
    weight, of_weight = integers(outputs, width), powers(-(-outputs // 128))
    args = (integers(tokens, width), scale, weight, of_weight, bias, residual)
    want = reference.linear_int8(*args, kind == "down")
    x, x_scale, w, w_scale, b, r = on_device(*args)
    for _ in range(2):
        given = {"residual": r, "blocks": kind == "down"}
        got = linear_int8(Activation(x, x_scale), w, w_scale, b, **given)
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("adds", [False, True])
def test_rows_have_the_oracles_integers(tokens: int, adds: bool, shape: Any) -> None:
    x, weight = draw(tokens, shape[3]) * 5, draw(shape[3])
    x[tokens // 2] = 0
    delta = draw(tokens, shape[3]) if adds else None
    total, q, scale = reference.add_rms_norm(x, delta, weight, None, 1e-6, "rows")
    got_total, got = add_rms_norm(*on_device(x, delta, weight), 1e-6, quantise="rows")
    assert torch.equal(got.values.cpu(), q)
    assert torch.equal(got_total.cpu(), total if adds else x)
    assert got.scale is not None
    near(got.scale, scale, 1e-5)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("given", ["bf16", "e4m3", "int8"])
def test_gate_up(tokens: int, given: str, shape: Any) -> None:
    *_, hidden, middle = shape
    wide, weight = draw(tokens, hidden), draw(2 * middle, hidden) / hidden**0.5
    if given == "bf16":
        args: tuple[Any, ...] = (wide, None, weight, None)
    elif given == "e4m3":
        args = (*quantise_per_token(wide), *quantise_weight(weight))
    else:
        args = (integers(tokens, hidden), torch.rand(tokens, 1) * 1e-2, integers(2 * middle, hidden))
        args = (*args, torch.rand(middle // 64) * 1e-2 / hidden**0.5)
    x, x_scale, w, w_scale = on_device(*args)
    want, of_blocks = reference.gate_up(*args, None, True)
    for _ in range(2):
        got = gate_up(Activation(x, x_scale), w, w_scale, blocks=True)
        # exp and the order of floating-point sums; sums of e4m3 keep 14 bits on Hopper's tensor cores, which
        # moves 3% of the integers by one
        near_integers(got.values, want, 5e-2 if given == "e4m3" else 1e-2)
        assert got.scale is not None
        near(got.scale, of_blocks, 3e-3 if given == "e4m3" else 1e-3)
    if given == "int8":
        near(gate_up(Activation(x, x_scale), w, w_scale).values, reference.gate_up(*args, None)[0], 3e-3)
        one = torch.full((1,), 0.05)
        narrow = gate_up(Activation(x, x_scale), w, w_scale, scale=one.cuda()).values
        near(narrow, reference.gate_up(*args, one)[0], 1.5e-2)


@pytest.mark.parametrize("tokens", TOKENS)
def test_gate_apart(tokens: int, shape: Any) -> None:
    both = draw(tokens, 2 * shape[4])
    want, scale = reference.silu_mul(both, None, "blocks")
    got = silu_mul(both.cuda(), quantise="blocks")
    near_integers(got.values, want, 1e-3)
    assert got.scale is not None
    near(got.scale, scale, 1e-5)


@pytest.mark.parametrize("prefixes", [False, True])
def test_attention(prefixes: bool, shape: Any) -> None:
    heads, kv, dim, *_ = shape
    lengths = [1, 77, 300, 33, 0, 64, 1]
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    rows = sum(lengths) + 50
    q, k, v = draw(rows, heads, dim) * 0.2, draw(rows, kv, dim), draw(rows, kv, dim)
    size = tile_tokens(heads, kv)
    tiles = reference.attention_tiles(cu, torch.zeros(rows), size, 512, 512)
    before = torch.tensor([[5, 40], [5, 40], [6, 0], [-1, 37], [-1, 0], [-1, 40], [-1, 0]], dtype=torch.int32)
    given = (before, draw(64, kv, dim), draw(64, kv, dim)) if prefixes else None
    scale = (torch.rand(heads) + 0.5) * 100
    more = (None, None, None) if given is None else given
    want = reference.varlen_attention(q, k, v, tiles, cu, scale, *more, "heads")[:-50]
    at = torch.zeros(rows, dtype=torch.int64, device="cuda")
    made = attention_tiles(cu.cuda(), at, tokens=size, max_samples=512, max_seqlen=512)
    device = None if given is None else on_device(*given)
    got = varlen_attention(
        *on_device(q, k, v), made, cu.cuda(), scale=scale.cuda(), before=device, quantise="heads"
    )
    assert got.scale is None
    # weights are rounded to bf16 before they meet the values
    near(got.values[:-50], want, 2e-2)
    assert int((got.values[:-50].cpu().int() - want.int()).abs().max()) <= 3
