"""boundgen::beam_attention on a real device: against its oracle, compiled into a package, captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from engine.ops import reference
from engine.ops.beam_attention import beam_attention

pytestmark = pytest.mark.gpu
SHAPES = {"qwen3": (16, 8, 128), "qwen2": (14, 2, 64), "smollm2": (9, 3, 64), "mha": (4, 4, 64)}
TOLERANCE = 6e-3  # weights are rounded to bf16 before they meet the values


def batch(shape: tuple[int, int, int], lengths: list[int], beams: int, used: int, slots: int) -> list[Any]:
    """On the device; unused slots hold NaN, and each used one the row of some beam."""
    generator = torch.Generator("cuda").manual_seed(0)
    heads, kv, dim = shape
    rows = len(lengths) * beams

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device="cuda").bfloat16()

    suffix = [draw(slots, rows, kv, dim) for _ in range(2)]
    ancestors = torch.randint(beams, (slots, rows), generator=generator, device="cuda")
    ancestors += torch.arange(rows, device="cuda") // beams * beams
    ancestors[used:] = -1
    for x in suffix:
        x[used:] = torch.nan
    q, k, v = draw(rows, heads + 2 * kv, dim).split([heads, kv, kv], dim=1)
    prompt = [draw(sum(lengths), kv, dim) for _ in range(2)]
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    return [q, k, v, tuple(prompt), tuple(suffix), ancestors, cu]


def check(got: Tensor, given: list[Any]) -> None:
    """Against the oracle, on the CPU."""
    host = [tuple(y.cpu() for y in x) if isinstance(x, tuple) else x.cpu() for x in given]
    want = reference.beam_attention(*host).float()
    error = (got.cpu().float() - want).norm() / want.norm()
    assert error < TOLERANCE, float(error)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("lengths", "beams", "used", "slots"),
    [([60], 100, 3, 4), ([5, 1, 300, 64], 7, 0, 4), ([1], 1, 0, 1), ([33, 2048], 9, 8, 8)],
)
def test_oracle(shape: str, lengths: list[int], beams: int, used: int, slots: int) -> None:
    given = batch(SHAPES[shape], lengths, beams, used, slots)
    first, second = (beam_attention(*given, 2048) for _ in range(2))
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))
    check(first, given)


class Attention(nn.Module):
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, prompt: tuple[Tensor, Tensor], suffix: tuple[Tensor, Tensor],
        ancestors: Tensor, cu_seqlens: Tensor,
    ) -> Tensor:  # fmt: skip
        attended = beam_attention(q.relu(), k, v, prompt, suffix, ancestors, cu_seqlens, 2048)
        return attended.flatten(-2)


@pytest.mark.filterwarnings("ignore")  # torch's own, of export and compilation
def test_compiled_and_captured(tmp_path: Path) -> None:
    """One package for all sizes; a replay reads what its inputs hold by then."""
    example = batch(SHAPES["qwen2"], [60, 33, 20], 40, 2, 4)
    example[:3] = [x.contiguous() for x in example[:3]]
    rows, tokens = Dim("rows", min=2, max=4096), Dim("tokens", min=2, max=8192)
    shapes = [{0: rows}] * 3 + [({0: tokens},) * 2, ({1: rows},) * 2, {1: rows}, {0: Dim("borders", min=2)}]
    exported = torch.export.export(Attention(), tuple(example), dynamic_shapes=tuple(shapes))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "attention.pt2"))
    run = torch._inductor.aoti_load_package(path, run_single_threaded=True)
    given = batch(SHAPES["qwen2"], [60, 300], 100, 3, 4)
    given[:3] = [x.contiguous() for x in given[:3]]
    run(*given)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = run(*given)
    given[0].neg_()
    given[5][:2] = given[5][:2].flip(1).sort(1).values
    graph.replay()
    torch.cuda.synchronize()
    given[0].relu_()
    check(out.unflatten(-1, (14, 64)), given)
