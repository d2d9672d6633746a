"""Every kernel on a real device against its oracle: poisoned outputs and padding, odd sizes, equal bits each
run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ops.portable import reference
from engine.ops.portable.activation import silu_mul
from engine.ops.portable.attention import tile_tokens, varlen_attention
from engine.ops.portable.attention_tiles import attention_tiles
from engine.ops.portable.gate_up import gate_up
from engine.ops.portable.linear import linear_e4m3, quantise_weight
from engine.ops.portable.norm import add_rms_norm
from engine.ops.portable.quantise import quantise_rows
from engine.ops.portable.quantised import Activation, dequantise, quantise_per_token, quantise_static
from engine.ops.portable.rotary import head_norm_rope

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
# one rounding to bf16 is 2e-3 in this norm, one to e4m3 3e-2; a step of e4m3 that falls the other way is rare
TOLERANCE = {torch.bfloat16: 3e-3, torch.float8_e4m3fn: 3e-3}
TOKENS = (1, 2, 77, 130, 1000)
SHAPES = {
    "qwen3": (16, 8, 128, 1024, 3072),
    "qwen2": (14, 2, 64, 896, 4864),
    "smollm2": (9, 3, 64, 576, 1536),
}
MODES = ("none", "static", "token")


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> tuple[int, int, int, int, int]:
    return SHAPES[request.param]


def draw(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda").bfloat16()


def check(run: Callable[[], Any], want: torch.Tensor, tolerance: float | None = None) -> None:
    """`run` gives an Activation or a tensor: near the oracle, the same bits twice."""
    first, second = run(), run()
    values = [(x.values, x.scale) if isinstance(x, Activation) else (x, None) for x in (first, second)]
    got = dequantise(*values[0])
    error = (got - want.float()).norm() / want.float().norm()
    assert error < (tolerance or TOLERANCE[values[0][0].dtype]), float(error)
    assert torch.equal(values[0][0].view(torch.uint8), values[1][0].view(torch.uint8))


def scale_of(mode: str, value: torch.Tensor) -> torch.Tensor | None:
    return (value.float().abs().max() / 224).reshape(1) if mode == "static" else None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("residual", [False, True])
def test_norm(tokens: int, residual: bool, mode: str, shape: Any) -> None:
    x, weight = draw(tokens, shape[3]), draw(shape[3])
    delta = draw(tokens, shape[3]) if residual else None
    scale = scale_of(mode, weight * 4)
    total, out, rows = reference.add_rms_norm(x, delta, weight, scale, 1e-6, mode)
    want = dequantise(out, scale if mode == "static" else rows if mode == "token" else None)
    check(lambda: add_rms_norm(x, delta, weight, 1e-6, quantise=mode, scale=scale)[1], want)
    if residual:
        check(lambda: add_rms_norm(x, delta, weight, 1e-6, quantise=mode, scale=scale)[0], total, 1e-9)
    else:
        take = torch.arange(tokens, device="cuda").flip(0)
        found = add_rms_norm(
            x.flip(0).contiguous(), None, weight, 1e-6, quantise=mode, scale=scale, take=take
        )
        assert torch.equal(found[0], x)
        check(lambda: found[1], want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_silu_mul(tokens: int, mode: str, shape: Any) -> None:
    both = draw(tokens, 2 * shape[4])
    scale = scale_of(mode, both * 4)
    out, rows = reference.silu_mul(both, scale, mode)
    want = dequantise(out, scale if mode == "static" else rows if mode == "token" else None)
    check(lambda: silu_mul(both, quantise=mode, scale=scale), want)


@pytest.mark.parametrize("tokens", TOKENS)
def test_quantise_rows(tokens: int, shape: Any) -> None:
    x = draw(tokens, shape[0] * shape[2])
    check(lambda: quantise_rows(x), dequantise(*quantise_per_token(x)))
    factor = torch.tensor([0.3], device=x.device)
    scales = [quantise_rows(x, each).scale for each in (None, factor)]
    assert scales[0] is not None
    assert torch.equal(scales[1], scales[0] * factor)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("tokens", TOKENS)
def test_head_norm_rope(tokens: int, norm: bool, shape: Any) -> None:
    heads, kv, dim, *_ = shape
    angle = torch.rand(512, dim // 2, device="cuda") * 6
    at = torch.randint(0, 512, (tokens,), device="cuda")
    qkv, weights = draw(tokens, (heads + 2 * kv) * dim), (draw(dim), draw(dim)) if norm else None
    want = reference.head_norm_rope(
        qkv, at, angle.cos(), angle.sin(), *(weights or (None, None)), heads, kv, 1e-6, 0.18
    )
    tables = (angle.cos(), angle.sin())
    options = {"heads": heads, "kv_heads": kv, "eps": 1e-6, "q_scale": 0.18}
    check(lambda: head_norm_rope(qkv, at, tables, weights, **options)[0].flatten(1), want[:, : heads * dim])
    check(lambda: head_norm_rope(qkv, at, tables, weights, **options)[1].flatten(1), want[:, heads * dim :])


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("lengths", [[1], [512], [1, 2, 77, 0, 130, 512, 31, 32, 33], [1] * 300])
def test_attention(lengths: list[int], quantised: bool, shape: Any) -> None:
    heads, kv, dim, *_ = shape
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    total = sum(lengths)
    rows = total + 50  # padding of a bucket: NaN, and never read
    q, k, wide = draw(rows, heads, dim) * 0.2, draw(rows, kv, dim), draw(rows, 2 * kv * dim)
    q[total:], k[total:], wide[total:] = torch.nan, torch.nan, torch.nan
    v = wide[:, kv * dim :].unflatten(-1, (kv, dim))
    at = torch.zeros(rows, dtype=torch.int64, device="cuda")
    size = tile_tokens(heads, kv)
    tiles = attention_tiles(cu, at, tokens=size, max_samples=512, max_seqlen=512)
    expected = reference.attention_tiles(cu, at, size, 512, 512)
    used = expected[:, 1] > 0
    assert torch.equal(tiles[used], expected[used])
    assert bool((tiles[~used][:, 1] <= tiles[~used][:, 2]).all())
    scale = torch.full((1,), 0.01, device="cuda") if quantised else None
    want = dequantise(reference.varlen_attention(q, k, v, tiles, cu, scale), scale)

    def attend() -> Activation:
        out = varlen_attention(q, k, v, tiles, cu, scale=scale)
        return Activation(out.values[:total], out.scale)

    # weights are rounded to bf16 before they meet the values: some e4m3 values fall to the next step
    check(attend, want[:total], 1.5e-2 if quantised else 6e-3)


@pytest.mark.parametrize("quantised", [False, True])
def test_attention_to_prefixes(quantised: bool, shape: Any) -> None:
    heads, kv, dim, *_ = shape
    lengths = [1, 77, 300, 33, 0, 64, 1]
    before = [[5, 40], [5, 40], [6, 0], [-1, 37], [-1, 0], [-1, 40], [-1, 0]]
    prefixes = torch.tensor(before, dtype=torch.int32, device="cuda")
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    rows = sum(lengths) + 50
    q, k, v = draw(rows, heads, dim) * 0.2, draw(rows, kv, dim), draw(rows, kv, dim)
    constant = draw(64, kv, dim), draw(64, kv, dim)
    for x in (q, k, v):
        x[-50:] = torch.nan
    for x in constant:
        x[40:] = torch.nan
    at = torch.zeros(rows, dtype=torch.int64, device="cuda")
    tiles = attention_tiles(cu, at, tokens=tile_tokens(heads, kv), max_samples=512, max_seqlen=512)
    scale = torch.full((1,), 0.01, device="cuda") if quantised else None
    want = dequantise(reference.varlen_attention(q, k, v, tiles, cu, scale, prefixes, *constant), scale)

    def attend() -> Activation:
        out = varlen_attention(q, k, v, tiles, cu, scale=scale, before=(prefixes, *constant))
        return Activation(out.values[:-50], out.scale)

    check(attend, want[:-50], 1.5e-2 if quantised else 6e-3)


@pytest.mark.parametrize("mode", ["bf16", "static", "token"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_gate_up(tokens: int, mode: str, shape: Any) -> None:
    *_, hidden, middle = shape
    wide, weight = draw(tokens, hidden), draw(2 * middle, hidden) / hidden**0.5
    if mode == "bf16":
        x, w, w_scale, scale = Activation(wide), weight, None, None
    else:
        w, w_scale = quantise_weight(weight)
        one = torch.full((1,), 0.02, device="cuda")
        static = mode == "static"
        x = Activation(quantise_static(wide, one), one) if static else Activation(*quantise_per_token(wide))
        scale = torch.full((1,), 0.05, device="cuda") if static else None
    want = dequantise(reference.gate_up(x.values, x.scale, w, w_scale, scale)[0], scale)
    # another order of summation: a few e4m3 values in a thousand fall to the next step
    check(lambda: gate_up(x, w, w_scale, scale=scale), want, 6e-3 if scale is None else 1.5e-2)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", TOKENS)
def test_linear_e4m3(tokens: int, bias: bool, static: bool, shape: Any) -> None:
    heads, kv, dim, hidden, _ = shape
    wide, weight = draw(tokens, hidden), draw((heads + 2 * kv) * dim, hidden) / hidden**0.5
    w, w_scale = quantise_weight(weight)
    one = torch.full((1,), 0.02, device="cuda")
    x = Activation(quantise_static(wide, one), one) if static else Activation(*quantise_per_token(wide))
    given = draw(weight.shape[0]) if bias else None
    want = reference.linear_e4m3(x.values, x.scale, w, w_scale, given)
    check(lambda: linear_e4m3(x, w, w_scale, given), want, 4e-3)
