"""boundgen::beam_attention against its oracle: both kernels, odd shapes, unused slots, no leaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.build.compiler import require_compiler
from engine.build.native import BEAM_SOURCES, build_native, default_cache
from engine.ops import beam_attention as op
from engine.ops import reference
from engine.runtime.native import load_beam_native

Attend = Callable[..., Tensor]
MAX_SEQLEN = 130
LENGTHS = ([1], [5, 1, 130, 2])
SHAPES = [(9, 3, 64), (4, 4, 24), (8, 1, 7), (2, 2, 128)]  # (query heads, key heads, head width)
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module", params=["python", "native"])
def attend(request: pytest.FixtureRequest) -> Attend:
    """The kernel for any device, or the one that packages call."""
    if request.param == "python":
        return lambda q, k, v, prompt, suffix, *more: op._attend_padded(q, k, v, *prompt, *suffix, *more)
    load_beam_native(build_native(require_compiler(), default_cache(), BEAM_SOURCES))
    return op.beam_attention


def batch(
    lengths: Sequence[int],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    beams: int,
    used: int,
    slots: int,
) -> list[Any]:
    """Arguments up to cu_seqlens; unused slots hold NaN, and each used one the row of some beam."""
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads, width = shape
    rows = len(lengths) * beams

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(dtype)

    suffix = [draw(slots, rows, kv_heads, width) for _ in range(2)]
    ancestors = torch.randint(beams, (slots, rows), generator=generator)
    ancestors += torch.arange(rows) // beams * beams
    ancestors[used:] = -1
    for x in suffix:
        x[used:] = torch.nan
    fused = draw(rows, heads + 2 * kv_heads, width)  # q, k and v are views, as a projection leaves them
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    prompt = [draw(sum(lengths), kv_heads, width) for _ in range(2)]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return [q, k, v, tuple(prompt), tuple(suffix), ancestors, cu_seqlens]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("beams", "used", "slots"), [(1, 0, 1), (7, 3, 4), (100, 2, 8)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}x{max(lengths)}")
def test_oracle(
    attend: Attend, lengths: list[int], shape: tuple[int, int, int], dtype: torch.dtype,
    beams: int, used: int, slots: int,
) -> None:  # fmt: skip
    arguments = batch(lengths, shape, dtype, beams=beams, used=used, slots=slots)
    out = attend(*arguments, MAX_SEQLEN)
    assert out.is_contiguous()
    assert out.dtype == dtype
    expected = reference.beam_attention(*arguments)
    torch.testing.assert_close(out.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_poison_stays_in_its_prompt(attend: Attend) -> None:
    def make() -> list[Any]:
        return batch([5, 7, 4], (4, 2, 16), torch.float32, beams=6, used=2, slots=3)

    clean = attend(*make(), MAX_SEQLEN)
    arguments = make()
    q, k, v, prompt, suffix, _, _ = arguments
    for x in (q, k, v):
        x[6:12] = torch.nan
    for x in (*prompt,):
        x[5:12] = torch.nan
    for x in suffix:
        x[:, 6:12] = torch.nan
    out = attend(*arguments, MAX_SEQLEN)
    assert bool(out[6:12].isnan().all())
    torch.testing.assert_close(out[:6], clean[:6])
    torch.testing.assert_close(out[12:], clean[12:])


def test_a_poisoned_beam_leaves_its_siblings_alone(attend: Attend) -> None:
    arguments = batch([5], (4, 2, 16), torch.float32, beams=6, used=2, slots=3)
    arguments[5] = torch.where(arguments[5] >= 0, arguments[5].clamp_max(4), -1)  # nobody descends from 5
    clean = attend(*arguments, MAX_SEQLEN)
    for x in arguments[:3]:
        x[5] = torch.nan
    for x in arguments[4]:
        x[:, 5] = torch.nan
    torch.testing.assert_close(attend(*arguments, MAX_SEQLEN)[:5], clean[:5])


def test_many_threads_and_inference_mode(attend: Attend) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with torch.inference_mode():
            arguments = batch([3, 30, 1, 12] * 3, (6, 3, 32), torch.float32, beams=9, used=2, slots=2)
            torch.testing.assert_close(
                attend(*arguments, MAX_SEQLEN), reference.beam_attention(*arguments), atol=1e-5, rtol=1e-5
            )
    finally:
        torch.set_num_threads(before)


def test_registration() -> None:
    """Schema, shape inference and what tracing relies on, as torch checks custom operators."""
    q, k, v, prompt, suffix, ancestors, cu_seqlens = batch(
        [3, 4], (4, 2, 8), torch.float32, beams=2, used=1, slots=2
    )
    torch.library.opcheck(
        torch.ops.boundgen.beam_attention.default,
        (q, k, v, *prompt, *suffix, ancestors, cu_seqlens, MAX_SEQLEN),
        test_utils=("test_schema", "test_faketensor"),
    )
