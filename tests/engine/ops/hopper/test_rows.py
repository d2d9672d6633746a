"""Embedding rows and hand-over rows on the GPU against their oracles."""

import pytest
import torch

from engine.ops.hopper.rows import embed, embed_reference, rows, rows_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("num", [1, 77, 4096])
@pytest.mark.parametrize("width", [576, 896, 1024, 1536])
@pytest.mark.parametrize("operand", [torch.float8_e4m3fn, torch.bfloat16])
def test_kernel(operand, width, num, library, poison):
    table = torch.randn(1000, width, device="cuda").bfloat16()
    ids = torch.randint(0, 1000, (num,), device="cuda")
    scales = torch.tensor([37.0, 1.0], device="cuda")
    poison()
    x, x8, partials, _ = embed(library, ids, table, scales, operand)
    want, want8, want_partials, _ = embed_reference(library, ids, table, scales, operand)
    assert torch.equal(x, want)
    assert torch.equal(x8.view(torch.uint8), want8.view(torch.uint8))
    torch.testing.assert_close(partials, want_partials, rtol=1e-5, atol=0)
    poison()
    handed8, handed, _ = rows(library, x, scales, operand)
    assert torch.equal(handed, partials)
    assert torch.equal(
        handed8.view(torch.uint8), rows_reference(library, x, scales, operand)[0].view(torch.uint8)
    )
