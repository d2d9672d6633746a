"""boundgen::packed_attention against its oracle: both kernels, odd shapes, prefixes, no leaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.build.compiler import require_compiler
from engine.build.native import build_native, default_cache
from engine.ops import packed_attention as op
from engine.ops import reference
from engine.runtime.native import load_native

Attend = Callable[..., Tensor]
MAX_SEQLEN = 300
LENGTHS = ([1, 1], [1], [5, 1, 300, 2], [17] * 40, [300, 300], [64, 65, 63, 1])
SHAPES = [(9, 3, 64), (4, 4, 24), (8, 1, 7), (2, 2, 128), (6, 2, 1)]  # (query heads, key heads, head width)
# lengths of segments, and what each attends to before itself: (another segment or -1, rows of the constant)
NUM_CONSTANT = 21
PREFIXED: dict[str, tuple[list[int], list[tuple[int, int]]]] = {
    "none": ([5, 1, 30], [(-1, 0)] * 3),
    "shared": ([5, 1, 300, 7], [(3, 0), (3, 0), (3, 0), (-1, 0)]),
    "constant": ([5, 1, 30], [(-1, 21), (-1, 20), (-1, 1)]),
    "both": ([5, 1, 30, 64, 1], [(3, 21), (3, 21), (4, 9), (-1, 21), (-1, 9)]),
    "two requests": ([2, 3, 4, 1, 9, 17], [(4, 0), (4, 0), (5, 0), (5, 0), (-1, 0), (-1, 0)]),
    "some": ([2, 3, 4, 6, 1, 9], [(-1, 0), (4, 0), (-1, 13), (4, 0), (-1, 0), (-1, 0)]),
    "many": ([7, 30, 1, 12] * 10 + [33], [(40, 5)] * 40 + [(-1, 5)]),
}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module", params=["python", "native"])
def attend(request: pytest.FixtureRequest) -> Attend:
    """The kernel of eager runs, or the one that packages call."""
    if request.param == "python":
        return op._attend_by_segment
    load_native(build_native(require_compiler(), default_cache()))
    kernel: Attend = torch.ops.boundgen.packed_attention.default
    return kernel


def batch(
    lengths: Sequence[int], shape: tuple[int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q and k contiguous, v a strided view, as a fused projection leaves it."""
    generator = torch.Generator().manual_seed(0)
    num_heads, num_kv_heads, head_dim = shape
    num_tokens = sum(lengths)
    q = torch.randn(num_tokens, num_heads, head_dim, generator=generator)
    k = torch.randn(num_tokens, num_kv_heads, head_dim, generator=generator)
    v = torch.randn(num_tokens, 3 * num_kv_heads, head_dim, generator=generator)[
        :, num_kv_heads:-num_kv_heads
    ]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return q.to(dtype), k.to(dtype), v.to(dtype), cu_seqlens


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}x{max(lengths)}")
def test_oracle(attend: Attend, lengths: list[int], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    q, k, v, cu_seqlens = batch(lengths, shape, dtype)
    out = attend(q, k, v, cu_seqlens, MAX_SEQLEN)
    assert out.is_contiguous()
    assert out.dtype == dtype
    expected = reference.packed_attention(q.float(), k.float(), v.float(), cu_seqlens)
    torch.testing.assert_close(out.float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def prefixed(
    case: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    lengths, before = PREFIXED[case]
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.randn(NUM_CONSTANT, *shape[1:], generator=generator).to(dtype) for _ in range(2))
    return *batch(lengths, shape, dtype), torch.tensor(before, dtype=torch.int32), (k, v)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", PREFIXED)
def test_prefixes(attend: Attend, case: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    q, k, v, cu_seqlens, prefixes, constant = prefixed(case, shape, dtype)
    out = attend(q, k, v, cu_seqlens, MAX_SEQLEN, prefixes, *constant)
    wide = (q.float(), k.float(), v.float(), cu_seqlens, prefixes, tuple(x.float() for x in constant))
    expected = reference.packed_attention(*wide)
    torch.testing.assert_close(out.float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("case", ["shared", "constant", "both"])
def test_a_prefix_is_what_comes_before(attend: Attend, case: str) -> None:
    """Each segment equals the end of the whole sequence: constant rows, parent, itself."""
    q, k, v, cu_seqlens, prefixes, constant = prefixed(case, (6, 2, 16), torch.float32)
    out = attend(q, k, v, cu_seqlens, MAX_SEQLEN, prefixes, *constant)
    borders = cu_seqlens.tolist()
    for index, (parent, count) in enumerate(prefixes.tolist()):
        own = slice(borders[index], borders[index + 1])
        before = slice(borders[parent], borders[parent + 1]) if parent >= 0 else slice(0, 0)
        keys, values = (
            torch.cat([c[:count], x[before], x[own]]) for c, x in zip(constant, (k, v), strict=True)
        )
        queries = torch.zeros(len(keys), 6, 16)
        queries[-(own.stop - own.start) :] = q[own]
        whole = torch.tensor([0, len(keys)], dtype=torch.int32)
        expected = reference.packed_attention(queries, keys, values, whole)[-(own.stop - own.start) :]
        torch.testing.assert_close(out[own], expected, atol=2e-6, rtol=2e-6)


def test_prefixes_of_another_length_are_none(attend: Attend) -> None:
    q, k, v, cu_seqlens = batch([5, 7, 4], (4, 2, 16), torch.float32)
    none = torch.tensor([[-1, 0], [-1, 0]], dtype=torch.int32)
    constant = (torch.full((2, 2, 16), float("nan")),) * 2
    out = attend(q, k, v, cu_seqlens, MAX_SEQLEN, none, *constant)
    assert torch.equal(out, attend(q, k, v, cu_seqlens, MAX_SEQLEN))


def test_scores_far_apart_are_joined(attend: Attend) -> None:
    """A prefix that outweighs everything, or nothing: no infinity on the way."""
    q, k, v, cu_seqlens, prefixes, constant = prefixed("both", (4, 2, 16), torch.float32)
    for scale in (60.0, 1e-4):
        given = (q * scale, k, v, cu_seqlens)
        out = attend(*given, MAX_SEQLEN, prefixes, *constant)
        expected = reference.packed_attention(*given, prefixes, constant)
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_oracle_by_hand() -> None:
    """Two samples of two and one token, width one: weights by the formula."""
    q, k = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 5.0])
    v, cu_seqlens = torch.tensor([10.0, 20.0, 30.0]), torch.tensor([0, 2, 3], dtype=torch.int32)
    out = reference.packed_attention(*(x.reshape(3, 1, 1) for x in (q, k, v)), cu_seqlens)
    weight = torch.exp(torch.tensor(2.0)) / (1 + torch.exp(torch.tensor(2.0)))
    torch.testing.assert_close(out.flatten(), torch.stack([v[0], 10 + 10 * weight, v[2]]))


def test_poison_stays_in_its_sample(attend: Attend) -> None:
    q, k, v, cu_seqlens = batch([5, 7, 4, 9], (4, 2, 16), torch.float32)
    clean = attend(q, k, v, cu_seqlens, MAX_SEQLEN)
    for tensor in (q, k, v):
        tensor[5:12] = float("nan")
    out = attend(q, k, v, cu_seqlens, MAX_SEQLEN)
    assert out[5:12].isnan().all()
    torch.testing.assert_close(out[:5], clean[:5])
    torch.testing.assert_close(out[12:], clean[12:])


def test_poisoned_padding_past_the_last_sample_is_not_read(attend: Attend) -> None:
    q, k, v, cu_seqlens = batch([5, 7], (4, 2, 16), torch.float32)
    clean = attend(q, k, v, cu_seqlens, MAX_SEQLEN)
    padding = torch.full((20, 4, 16), float("nan"))
    out = attend(
        torch.cat([q, padding]),
        torch.cat([k, padding[:, :2]]),
        torch.cat([v, padding[:, :2]]),
        cu_seqlens,
        MAX_SEQLEN,
    )
    torch.testing.assert_close(out[:12], clean)


def test_future_tokens_do_not_count(attend: Attend) -> None:
    q, k, v, cu_seqlens = batch([9], (4, 2, 16), torch.float32)
    clean = attend(q, k, v, cu_seqlens, MAX_SEQLEN)
    k[6:], v[6:] = 100.0, 100.0
    torch.testing.assert_close(attend(q, k, v, cu_seqlens, MAX_SEQLEN)[:6], clean[:6])


def test_many_threads_and_inference_mode(attend: Attend) -> None:
    """The kernel's own threads are not in the caller's inference mode; its tensors are."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with torch.inference_mode():
            q, k, v, cu_seqlens = batch([3, 30, 1, 12] * 10, (6, 3, 32), torch.float32)
            out = attend(q, k, v, cu_seqlens, MAX_SEQLEN)
            torch.testing.assert_close(out, reference.packed_attention(q, k, v, cu_seqlens))
    finally:
        torch.set_num_threads(before)


def test_registration() -> None:
    """Schema, shape inference and what tracing relies on, as torch checks custom operators."""
    q, k, v, cu_seqlens = batch([3, 4], (4, 2, 8), torch.float32)
    torch.library.opcheck(
        torch.ops.boundgen.packed_attention.default,
        (q, k, v, cu_seqlens, MAX_SEQLEN),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_native_library_is_loaded_once(tmp_path: Path) -> None:
    library = build_native(require_compiler(), default_cache())
    load_native(library)
    copy = tmp_path / "native.so"
    copy.write_bytes(library.read_bytes())
    load_native(copy)  # would register the class twice
