"""Every kernel but those of e4m3 against its oracle, run by Triton's interpreter on the CPU in its own
process.

The interpreter is chosen when a kernel is defined, so it cannot be switched on in a process that imported
one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed: kernels cannot be interpreted here")

PRELUDE = """
import importlib, torch
from engine.ops.portable import reference
torch.manual_seed(0)

def launch(module, *args):
    found = importlib.import_module(f"engine.ops.portable.{module}")
    found.wrap_triton = lambda kernel: kernel
    return found._launch.launch(*args)

def near(got, want, tolerance):
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < tolerance, float(error)

def draw(*shape):
    return torch.randn(shape)  # float32: the interpreter truncates to bfloat16 and multiplies it wrongly

def integers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)

def scales(*shape):
    return torch.rand(shape) + 0.5
"""

PROGRAMS = {
    "norm": """
x, delta, weight = draw(5, 576), draw(5, 576), draw(576)
for given in (delta, None):
    got = launch("norm", x, given, weight, None, 1e-6, "none")
    want = reference.add_rms_norm(x, given, weight, None, 1e-6, "none")
    near(got[1], want[1], 1e-6)
    assert torch.equal(got[0], want[0])
for given in (None, draw(7, 576)):
    args = (x, given, weight, None, 1e-6, "none", torch.tensor([4, 0, 2, 2, 4, 1, 3]))
    got, want = launch("norm", *args), reference.add_rms_norm(*args)
    near(got[1], want[1], 1e-6)
    assert torch.equal(got[0], want[0])
""",
    "silu": """
both = draw(3, 2 * 1536)
near(launch("activation", both, None, "none")[0], reference.silu_mul(both, None, "none")[0], 1e-6)
""",
    "rotary": """
for heads, kv, dim, norm in ((9, 3, 64, False), (4, 2, 128, True)):
    qkv, angle = draw(6, (heads + 2 * kv) * dim), torch.rand(40, dim // 2)
    norms = (draw(dim), draw(dim)) if norm else (None, None)
    args = (qkv, torch.tensor([0, 1, 39, 0, 5, 6]), angle.cos(), angle.sin(), *norms, heads, kv, 1e-6, 0.18)
    near(launch("rotary", *args), reference.head_norm_rope(*args), 1e-6)
""",
    "kept rotary": """
from engine.ops.portable import kept_rotary
for heads, kv, dim, norm in ((9, 3, 64, False), (4, 2, 128, True)):
    qkv, angle = draw(6, (heads + 2 * kv) * dim), torch.rand(40, dim // 2)
    norms = (draw(dim), draw(dim)) if norm else (None, None)
    args = (qkv, torch.tensor([0, 1, 39, 0, 5, 6]), angle.cos(), angle.sin(), *norms)
    caches = [[torch.full((2, 3, 6, kv, dim), torch.nan) for _ in range(2)] for _ in range(2)]
    for run, (keys, values) in zip((kept_rotary.launch, torch.ops.boundgen.head_norm_rope_keep), caches):
        out = run(*args, torch.tensor([2]), keys, values, heads, kv, 1e-6, 0.18, 1)
        near(out, reference.head_norm_rope(*args, heads, kv, 1e-6, 0.18), 1e-6)
    for got, want in zip(*caches):
        near(got[1, 2], want[1, 2], 1e-6)
        assert int(got.isfinite().sum()) == 6 * kv * dim
""",
    "tiles": """
for lengths in ([3, 21, 22, 1, 0, 0], [500], [64] * 5, [1, 300, 20, 299, 64]):
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    at = torch.zeros(sum(lengths) + 9, dtype=torch.int64)  # nine rows of padding
    got = launch("attention_tiles", cu, at, 21, 256, 512)
    want = reference.attention_tiles(cu, at, 21, 256, 512)
    used = want[:, 1] > 0
    assert torch.equal(got[used], want[used])
    assert bool((got[~used, 1] <= got[~used, 2]).all())
""",
    "attention": """
from engine.ops.portable.attention import tile_tokens
for heads, kv, dim in ((4, 2, 128), (9, 3, 64), (7, 1, 64), (2, 2, 64)):
    lengths = [1, 70, 0, 33]
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    total = sum(lengths) + 3
    q, k = draw(total, heads, dim), draw(total, kv, dim)
    v = draw(total, 2 * kv * dim)[:, kv * dim:].unflatten(-1, (kv, dim))
    q[-3:], k[-3:], v[-3:] = (torch.nan,) * 3
    tiles = reference.attention_tiles(cu, q, tile_tokens(heads, kv), 16, 128)
    got = launch("attention", q, k, v, tiles, cu, None)[:-3]
    near(got, reference.varlen_attention(q, k, v, tiles, cu, None)[:-3], 1e-6)
""",
    "attention to prefixes": """
from engine.ops.portable.attention import tile_tokens
for heads, kv, dim in ((4, 2, 128), (9, 3, 64), (7, 1, 64)):
    lengths = [1, 70, 33, 2, 0, 45, 1]
    before = torch.tensor([[5, 40], [5, 40], [6, 0], [-1, 37], [-1, 0], [-1, 40], [-1, 0]], dtype=torch.int32)
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    total = sum(lengths) + 3
    q, k = draw(total, heads, dim), draw(total, kv, dim)
    v = draw(total, 2 * kv * dim)[:, kv * dim:].unflatten(-1, (kv, dim))
    q[-3:], k[-3:], v[-3:] = (torch.nan,) * 3
    constant = draw(64, kv, dim), draw(64, kv, dim)
    for each in constant:
        each[40:] = torch.nan
    tiles = launch("attention_tiles", cu, q, tile_tokens(heads, kv), 16, 128)
    args = (q, k, v, tiles, cu, None, before, *constant)
    near(launch("attention", *args)[:-3], reference.varlen_attention(*args)[:-3], 1e-6)
""",
    "beam attention": """
from engine.ops import reference as oracles
for heads, kv, dim, beams, used, slots in (
    (9, 3, 64, 7, 3, 4), (7, 1, 64, 1, 0, 1), (7, 1, 64, 11, 8, 8), (4, 2, 128, 40, 3, 4),
    (2, 2, 64, 70, 1, 2), (8, 1, 16, 9, 0, 4),
):
    lengths = [5, 1, 130]
    rows = beams * len(lengths)
    q, k, v = draw(rows, heads + 2 * kv, dim).split([heads, kv, kv], dim=1)
    prompts, suffixes = draw(2, sum(lengths), kv, dim), draw(2, slots, rows, kv, dim)
    suffixes[:, used:] = torch.nan
    ancestors = torch.randint(beams, (slots, rows)) + torch.arange(rows) // beams * beams
    ancestors[used:] = -1
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    got = launch("beam_attention", q, k, v, *prompts, *suffixes, ancestors, cu)
    near(got, oracles.beam_attention(q, k, v, prompts, suffixes, ancestors, cu), 1e-6)
""",
    "kept attention": """
from engine.ops.portable import kept_attention
many = 0  # programs that run at once: tiles are those of many rows
for heads, kv, dim, beams, used, slots, norm, kept_attention.AT_ONCE in (
    (9, 3, 64, 7, 3, 4, False, 99), (7, 1, 64, 1, 0, 1, False, 99), (7, 1, 64, 11, 7, 8, True, 99),
    (4, 2, 128, 40, 3, 4, True, 99), (4, 2, 128, 40, 3, 4, True, many), (2, 2, 64, 70, 1, 2, False, 99),
    (8, 1, 16, 9, 0, 4, True, 99), (2, 1, 24, 3, 1, 2, True, 99),
):
    lengths = [5, 1, 130]
    rows = beams * len(lengths)
    qkv, angle = draw(rows, (heads + 2 * kv) * dim), torch.rand(140, dim // 2)
    norms = (draw(dim), draw(dim)) if norm else (None, None)
    positions = torch.tensor(lengths).repeat_interleave(beams) + used
    prompts, suffixes = draw(2, 2, 1, sum(lengths), kv, dim), draw(2, 2, slots, rows, kv, dim)
    suffixes[:, :, used:] = torch.nan
    ancestors = torch.randint(beams, (slots, rows)) + torch.arange(rows) // beams * beams
    ancestors[used:] = -1
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    before = (qkv, positions, angle.cos(), angle.sin(), *norms, torch.tensor([used]))
    caches = [suffixes.clone() for _ in range(2)]
    got, want = (
        run(*before, *cache, *prompts, ancestors, cu, heads, kv, 1e-6, 1, 130)
        for run, cache in zip((kept_attention.launch, torch.ops.boundgen.kept_beam_attention), caches)
    )
    near(got, want, 1e-6)
    near(caches[0][:, 1, used], caches[1][:, 1, used], 1e-6)
    for cache in caches:
        cache[:, 1, used] = 0
    assert torch.equal(caches[0].nan_to_num(7), caches[1].nan_to_num(7))
""",
    "beam attention keeps poison with its beam": """
beams, slots = 8, 3
lengths = [5, 7, 4]
rows = beams * len(lengths)
q, k, v = draw(rows, 8, 64).split([4, 2, 2], dim=1)
prompts, suffixes = draw(2, sum(lengths), 2, 64), draw(2, slots, rows, 2, 64)
ancestors = torch.arange(rows).expand(slots, -1).clone()
cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
clean = launch("beam_attention", q, k, v, *prompts, *suffixes, ancestors, cu)
for bad in (torch.nan, torch.inf):
    poisoned = [x.clone() for x in (q, k, v, suffixes)]
    poisoned[0][2] = poisoned[1][3] = poisoned[2][4] = bad
    poisoned[3][0, 1, 5] = poisoned[3][1, 2, 6] = bad
    got = launch("beam_attention", *poisoned[:3], *prompts, *poisoned[3], ancestors, cu)
    assert not got[2:7].isfinite().flatten(1).all(1).any()
    got[2:7] = clean[2:7]
    assert torch.equal(got, clean)
prompts[:, 5:12] = torch.nan
got = launch("beam_attention", q, k, v, *prompts, *suffixes, ancestors, cu)
assert bool(got[beams:2 * beams].isnan().all())
got[beams:2 * beams] = clean[beams:2 * beams]
assert torch.equal(got, clean)
""",
    "gate_up": """
weight = draw(512, 128) / 8
# four programs at once: one tile of few rows, two; then of many, and more than go together
importlib.import_module("engine.ops.portable.tiles").MULTIPROCESSORS = 4
for rows in (1, 64, 100, 128, 130, 8 * 128 + 1):
    args = (draw(rows, 128), None, weight, None, None)
    near(launch("gate_up", *args)[0], reference.gate_up(*args)[0], 1e-6)
""",
    "split product and norm": """
import torch.nn.functional as F
from engine.ops.portable import product_norm
from engine.ops.portable.quantised import E4M3, dequantise
product_norm.starts_early = lambda _: False
product_norm.empty_quantised = lambda x, shape, mode: (torch.empty(shape), None)  # e4m3 would be truncated
sizes = ((1, 128, 640), (7, 192, 384), (64, 64, 640), (100, 128, 1152), (128, 64, 128), (129, 64, 384))
for rows, outputs, width in (*sizes, (200, 128, 384)):
    inputs, weight, gain = draw(rows, width), draw(outputs, width) / 8, scales(outputs)
    x, wide = draw(rows, outputs), (inputs, None, weight, None)
    for args in (wide, (inputs.to(E4M3), scales(1), weight.to(E4M3), scales(1))):
        delta = F.linear(dequantise(*args[:2]), dequantise(*args[2:]))
        total, normed, _ = reference.add_rms_norm(x, delta, gain, None, 1e-6, "none")
        scale = normed.abs().amax().reshape(1) / 600  # some saturate
        for given, want in ((None, normed), (scale, (normed / scale).clamp(-448, 448))):
            got = product_norm.launch(*args, x, gain, given, 1e-6)
            near(got[0], total, 1e-6)
            near(got[1], want, 1e-6)
""",
    "int8 rounding": """
x, delta = draw(6, 576) * 3, draw(6, 576)
x[4] = 0.0
x[5, :8] = torch.tensor([127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5])  # ties: its scale is 1
x[5, 8:] = 0
for given in (None, delta):
    args = (x, given, draw(576), None, 1e-6, "rows")
    (total, q, scale), want = launch("norm", *args), reference.add_rms_norm(*args)
    assert torch.equal(q, want[1]) and torch.equal(total, want[0])
    near(scale, want[2], 1e-6)
""",
    "int8 attention": """
from engine.ops.portable.attention import tile_tokens
for heads, kv, dim in ((4, 2, 128), (7, 1, 64)):
    cu = torch.tensor([0, 1, 71, 104], dtype=torch.int32)
    q, k, v = draw(104, heads, dim), draw(104, kv, dim), draw(104, kv, dim)
    tiles = reference.attention_tiles(cu, q, tile_tokens(heads, kv), 16, 128)
    args = (q, k, v, tiles, cu, scales(heads) * 150, None, None, None, "heads")
    got, want = launch("attention", *args).int(), reference.varlen_attention(*args).int()
    assert (got - want).abs().max() <= 1 and (got != want).float().mean() < 1e-3
    assert (want == 127).any() and (want == -128).any()  # some saturate
""",
    "int8 linear": """
from engine.ops.portable import linear_int8
linear_int8._allocate = lambda x, x_scale, weight, *_: torch.empty(len(x), len(weight))
# four programs at once: tiles of few rows, then of many, and more than go together
importlib.import_module("engine.ops.portable.tiles").MULTIPROCESSORS = 4
for tokens, outputs, width in ((130, 144, 576), (100, 128, 80), (1, 272, 128), (1025, 128, 64)):
    x, weight, of_rows = integers(tokens, width), integers(outputs, width), scales(-(-outputs // 128))
    given = scales(tokens, 1), draw(outputs), draw(tokens, outputs)
    for of_x, bias, residual in ((given[0], None, None), (None, *given[1:])):
        args = (x, of_x, weight, of_rows, bias, residual, False)
        near(launch("linear_int8", *args), reference.linear_int8(*args), 2e-3)  # the oracle's are bf16
    args = (x, None, weight, torch.ones_like(of_rows), None, None, False)
    assert torch.equal(launch("linear_int8", *args).double(), x.double() @ weight.double().T)  # exact
for tokens, outputs, width in ((130, 144, 512), (70, 128, 128)):
    x, weight, of_rows = integers(tokens, width), integers(outputs, width), scales(-(-outputs // 128))
    args = (x, scales(width // 128, tokens), weight, of_rows, None, draw(tokens, outputs), True)
    near(launch("linear_int8", *args), reference.linear_int8(*args), 2e-3)
    of_x = 2.0 ** torch.randint(-3, 3, (width // 128, tokens))
    args = (x, of_x, weight, torch.ones_like(of_rows), None, None, True)
    sums = (x.double().view(tokens, -1, 128) * of_x.double().T[:, :, None]).flatten(1) @ weight.double().T
    assert torch.equal(launch("linear_int8", *args).double(), sums)  # exact: scales are powers of two
""",
    "int8 gate_up": """
x, weight = integers(130, 128), integers(512, 128)
args = (x, scales(130, 1) * 1e-4, weight, scales(4), None)
wide = draw(130, 128), draw(512, 128) / 8
from engine.ops.portable import gate_up as module
for arch, given in ((90, args), (80, args), (90, (wide[0], None, wide[1], None, None))):
    module.capability = lambda _: arch
    (q, scale), want = launch("gate_up", *given, True), reference.gate_up(*given, True)
    near(scale, want[1], 1e-5)
    assert (q.int() - want[0].int()).abs().max() <= 1 and (q != want[0]).float().mean() < 1e-3
both = draw(3, 2 * 384)
(q, scale), want = launch("activation", both, None, "blocks"), reference.silu_mul(both, None, "blocks")
near(scale, want[1], 1e-5)
assert (q.int() - want[0].int()).abs().max() <= 1 and (q != want[0]).float().mean() < 1e-3
# what they stand for: the transform of 32 neighbours, in stored order
from engine.ops.portable.integers import stored_columns
from engine.quant.rotation import hadamard
import torch.nn.functional as F
order = stored_columns(384)
value = F.silu(both[:, :384]) * both[:, 384:]
mixed = (value.view(3, -1, 32) @ hadamard(32)).flatten(1)[:, order]
near(want[0].float().view(3, 3, 128) * want[1].T[:, :, None], mixed.view(3, 3, 128), 1e-2)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernel_computes_its_formula(name: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", PRELUDE + PROGRAMS[name]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
