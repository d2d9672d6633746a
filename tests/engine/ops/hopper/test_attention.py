"""Packed attention: the oracle against torch's attention on any machine, the kernel against the oracle on a
GPU.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from engine.ops.hopper.attention import attention, attention_reference
from engine.ops.hopper.layout import attention_columns, inverse
from engine.ops.hopper.plan import plan, plan_reference
from engine.ops.portable import reference
from tools.bench.synthetic import MODELS, mixed_lengths

E4M3, BF16, INT8 = torch.float8_e4m3fn, torch.bfloat16, torch.int8
HEADS = {name: (m.layer.num_q, m.layer.num_kv, m.layer.head_dim) for name, m in MODELS.items()}
LENGTHS = {
    "one token": [1],
    "ones": [1] * 70,
    "edges": [63, 64, 65, 127, 128, 129, 1],
    "one long": [2048],
    "empty ones": [0, 5, 0, 90, 0],
    "mixed": mixed_lengths(4096),
}
# lengths of segments; of each its parent and rows of the constant prefix
PREFIXED = {
    "constant alone": ([64, 1, 63, 65, 200, 90], [(-1, n) for n in (1, 63, 64, 65, 200, 0)]),
    "requests alone": (
        [5, 70, 64, 1, 130, 20, 1, 63, 64, 65, 200],
        [*((n, 0) for n in (6, 7, 8, 9, 10)), (-1, 0), *((-1, 0) for _ in range(5))],
    ),
    "both": (
        [5, 70, 64, 1, 130, 20, 0, 1, 63, 64, 65, 200],
        [
            (7, 1), (8, 63), (9, 64), (10, 65), (11, 200), (-1, 0), (8, 64),
            (-1, 1), (-1, 63), (-1, 64), (-1, 65), (-1, 200),
        ],
    ),
    "fifteen share": ([86] * 15 + [24], [(15, 40)] * 15 + [(-1, 40)]),
}  # fmt: skip
CONSTANT_ROWS = 256


def batch(lengths, padding, heads, device):
    num_q, num_kv, d = heads
    tokens = sum(lengths) + padding
    torch.manual_seed(tokens)
    rows = torch.randn(tokens, (num_q + 2 * num_kv) * d, device=device)
    rows[:, : num_q * d] *= math.log2(math.e) / math.sqrt(d)
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    return rows.bfloat16(), cu_seqlens, torch.zeros(tokens, dtype=torch.int64, device=device)


def constant_prefix(before, heads, device):
    """bf16[2, CONSTANT_ROWS, num_kv, D]; rows that nobody uses are huge, but finite."""
    constant = torch.randn(2, CONSTANT_ROWS, *heads[1:], device=device)
    constant[:, max(n for _, n in before) :] = 1e30
    return constant.bfloat16()


@pytest.mark.parametrize("case", PREFIXED)
@pytest.mark.parametrize("heads", [(6, 2, 64), (3, 1, 128)])
def test_the_oracle_sees_prefixes_as_the_portable_one_does(case, heads):
    num_q, num_kv, d = heads
    lengths, before = PREFIXED[case]
    rows, cu_seqlens, positions = batch(lengths, 3, heads, "cpu")
    prefixes, constant = torch.tensor(before, dtype=torch.int32), constant_prefix(before, heads, "cpu")
    items, offsets = plan_reference("", cu_seqlens, positions, num_q, num_kv, 5, prefixes)
    out = attention("", rows, items, offsets, torch.ones(num_q), num_q, num_kv, BF16, constant)
    q, k, v = rows.view(len(rows), -1, d).split([num_q, num_kv, num_kv], 1)
    want = reference.varlen_attention(q, k, v, None, cu_seqlens, None, prefixes, constant[0], constant[1])
    out = out[: sum(lengths), inverse(attention_columns(num_q, d, BF16))].float()
    assert (out - want[: sum(lengths)].float()).abs().max() < 0.03


def test_the_oracle_is_causal_attention():
    num_q, num_kv, d = heads = (6, 2, 64)
    lengths = [1, 70, 64]
    rows, cu_seqlens, positions = batch(lengths, 3, heads, "cpu")
    items, offsets = plan_reference("", cu_seqlens, positions, num_q, num_kv, 5)
    out = attention("", rows, items, offsets, torch.ones(num_q), num_q, num_kv, BF16)
    out = out[:, inverse(attention_columns(num_q, d, BF16))].float()
    start = 0
    for n in lengths:
        y = rows[start : start + n].float().view(n, -1, d).transpose(0, 1)
        q, k, v = (
            y[:num_q],
            y[num_q : num_q + num_kv].repeat_interleave(3, 0),
            y[num_q + num_kv :].repeat_interleave(3, 0),
        )
        want = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=math.log(2))
            .transpose(0, 1)
            .reshape(n, -1)
        )
        assert (out[start : start + n] - want).abs().max() < 0.02
        start += n
    assert torch.isfinite(out).all()  # the padding's rows too


def check_against_oracle(arguments, output, poison, relative_error):
    poison()
    out = attention(*arguments)
    want = attention_reference(*arguments).float()
    assert relative_error(out.float(), want) < {E4M3: 3e-2, INT8: 3e-2, BF16: 6e-3}[output]
    assert (out.float() - want).abs().max() < 0.1 * want.abs().max()
    poison()
    assert torch.equal(attention(*arguments).view(torch.uint8), out.view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("padding", [0, 100])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("output", [E4M3, BF16, INT8])
@pytest.mark.parametrize("model", HEADS)
def test_kernel(model, output, lengths, padding, library, poison, relative_error):
    num_q, num_kv, _ = heads = HEADS[model]
    rows, cu_seqlens, positions = batch(LENGTHS[lengths], padding, heads, "cuda")
    scales = torch.linspace(0.5, 1.0, num_q, device="cuda") * {E4M3: 60.0, INT8: 30.0, BF16: 1.0}[output]
    items, offsets = plan(library, cu_seqlens, positions, num_q, num_kv, 264)
    arguments = (library, rows, items, offsets, scales, num_q, num_kv, output)
    check_against_oracle(arguments, output, poison, relative_error)


@pytest.mark.gpu
def test_a_sample_does_not_depend_on_its_neighbours(library):
    num_q, num_kv, _ = heads = (16, 8, 128)
    rows, cu_seqlens, positions = batch([100, 37, 200], 0, heads, "cuda")
    scales = torch.ones(num_q, device="cuda")

    def run(rows, cu_seqlens):
        items, offsets = plan(library, cu_seqlens, positions[: rows.shape[0]], num_q, num_kv, 264)
        return attention(library, rows, items, offsets, scales, num_q, num_kv, BF16)

    together = run(rows, cu_seqlens)
    alone = run(rows[100:137].contiguous(), torch.tensor([0, 37], dtype=torch.int32, device="cuda"))
    assert torch.equal(together[100:137], alone)


@pytest.mark.gpu
@pytest.mark.parametrize("padding", [0, 100])
@pytest.mark.parametrize("case", PREFIXED)
@pytest.mark.parametrize("output", [E4M3, BF16, INT8])
@pytest.mark.parametrize("model", HEADS)
def test_kernel_with_prefixes(model, output, case, padding, library, poison, relative_error):
    num_q, num_kv, _ = heads = HEADS[model]
    lengths, before = PREFIXED[case]
    rows, cu_seqlens, positions = batch(lengths, padding, heads, "cuda")
    prefixes = torch.tensor(before, dtype=torch.int32, device="cuda")
    constant = constant_prefix(before, heads, "cuda")
    scales = torch.linspace(0.5, 1.0, num_q, device="cuda") * {E4M3: 60.0, INT8: 30.0, BF16: 1.0}[output]
    items, offsets = plan(library, cu_seqlens, positions, num_q, num_kv, 264, prefixes)
    arguments = (library, rows, items, offsets, scales, num_q, num_kv, output, constant)
    check_against_oracle(arguments, output, poison, relative_error)


@pytest.mark.gpu
@pytest.mark.parametrize("model", HEADS)
def test_one_block_deals_with_every_kind_of_item_in_turn(model, library, relative_error):
    """Few blocks, so that each passes from items with prefixes to those without and back."""
    num_q, num_kv, _ = heads = HEADS[model]
    lengths, before = PREFIXED["both"]
    rows, cu_seqlens, positions = batch(lengths, 70, heads, "cuda")
    prefixes = torch.tensor(before, dtype=torch.int32, device="cuda")
    constant, scales = constant_prefix(before, heads, "cuda"), torch.ones(num_q, device="cuda")
    found = []
    for blocks in (1, 7, 264):
        items, offsets = plan(library, cu_seqlens, positions, num_q, num_kv, blocks, prefixes)
        found.append(attention(library, rows, items, offsets, scales, num_q, num_kv, BF16, constant))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    want = attention_reference(library, rows, items, offsets, scales, num_q, num_kv, BF16, constant)
    assert relative_error(found[0].float(), want.float()) < 6e-3


@pytest.mark.gpu
@pytest.mark.parametrize("model", HEADS)
def test_a_list_without_prefixes_gives_the_same_bits(model, library):
    """As a package calls it: a constant prefix is there, and no segment continues anything."""
    num_q, num_kv, _ = heads = HEADS[model]
    rows, cu_seqlens, positions = batch(LENGTHS["mixed"], 9, heads, "cuda")
    scales, none = torch.ones(num_q, device="cuda"), torch.tensor([[-1, 0]], dtype=torch.int32, device="cuda")
    prefixes = none.repeat(len(cu_seqlens) - 1, 1)
    plain = plan(library, cu_seqlens, positions, num_q, num_kv, 264)
    given = plan(library, cu_seqlens, positions, num_q, num_kv, 264, prefixes)
    constant = torch.zeros(2, 2, *heads[1:], dtype=BF16, device="cuda")
    want = attention(library, rows, *plain, scales, num_q, num_kv, BF16)
    assert torch.equal(attention(library, rows, *given, scales, num_q, num_kv, BF16, constant), want)
