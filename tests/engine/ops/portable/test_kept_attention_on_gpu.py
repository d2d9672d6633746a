"""boundgen::kept_beam_attention on a real device: against the two operations that do the same, again and
again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.ops.portable import kept_attention

pytestmark = pytest.mark.gpu
SHAPES = {"qwen3": (16, 8, 128), "qwen2": (14, 2, 64), "smollm2": (9, 3, 64), "mha": (4, 4, 64)}
TOLERANCE = 6e-3  # a rotated entry may round the other way


def near(got: Tensor, want: Tensor) -> None:
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < TOLERANCE, float(error)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("lengths", "beams", "used", "slots"),
    [
        ([60], 100, 3, 4),
        ([5, 1, 300, 64], 7, 0, 4),
        ([1, 2], 1, 0, 1),
        ([33, 500], 9, 7, 8),
        ([60] * 20, 100, 2, 4),
    ],
)
def test_one_kernel_does_what_two_do(
    shape: str, lengths: list[int], beams: int, used: int, slots: int
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    heads, kv, dim = SHAPES[shape]
    rows, layer = len(lengths) * beams, 1

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device="cuda").bfloat16()

    angle = torch.rand(520, dim // 2, generator=generator, device="cuda")
    norms = (draw(dim), draw(dim)) if shape == "qwen3" else (None, None)
    positions = (torch.tensor(lengths, device="cuda") + used).repeat_interleave(beams)
    prompts, suffixes = draw(2, 2, 1, sum(lengths), kv, dim), draw(2, 2, slots, rows, kv, dim)
    suffixes[:, :, used:] = torch.nan
    ancestors = torch.randint(beams, (slots, rows), generator=generator, device="cuda")
    ancestors += torch.arange(rows, device="cuda") // beams * beams
    ancestors[used:] = -1
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    slot = torch.tensor([used], device="cuda")
    before = (draw(rows, (heads + 2 * kv) * dim), positions, angle.cos(), angle.sin(), *norms, slot)
    after = (*prompts, ancestors, cu, heads, kv, 1e-6, layer, 512)
    caches = [suffixes.clone() for _ in range(3)]
    first, again = (torch.ops.boundgen.kept_beam_attention(*before, *x, *after) for x in caches[:2])
    want = kept_attention._apart(*before, *caches[2], *after)
    near(first, want)
    assert torch.equal(first.view(torch.int16), again.view(torch.int16))
    assert torch.equal(caches[0].view(torch.int16), caches[1].view(torch.int16))
    near(caches[0][:, layer, used], caches[2][:, layer, used])
    for cache in caches:
        cache[:, layer, used] = 0
    assert torch.equal(caches[0].view(torch.int16), caches[2].view(torch.int16))
