"""What a package is compiled to: it reads a single value where the caller keeps it, and fills nothing in."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, export

from engine.build.compilation import compile_package, expected_warnings
from engine.models.small_vectors import store, vector
from engine.ops.portable.norm import add_rms_norm


class Scaled(nn.Module):
    weight: Tensor
    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(16))
        self.register_buffer("scales", store(torch.tensor([0.5])))

    def forward(self, x: Tensor) -> Tensor:
        scale = vector(self.scales)
        return add_rms_norm(x, None, self.weight, 1e-6, quantise="static", scale=scale)[1].values.float()


def test_a_scale_is_read_from_the_constants(tmp_path: Path) -> None:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), expected_warnings():
        exported = export(Scaled(), (x,), dynamic_shapes=({0: Dim("rows", min=2, max=9)},))
        compile_package(exported, tmp_path / "scaled.pt2")
        package = torch._inductor.aoti_load_package(str(tmp_path / "scaled.pt2"))
    assert {"scales", "weight"} <= set(package.get_constant_fqns())
    found = []
    for scale in (0.5, 2.0):
        given = {"scales": torch.full((1, 1), scale), "weight": torch.ones(16)}
        package.load_constants(given, check_full_update=True)
        found.append(package(x) * scale)
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0.1)
