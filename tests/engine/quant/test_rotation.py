"""A rotated decoder is the plain one to float32's own precision, whatever biases and norms it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.models.decoder import PackedDecoder
from engine.packed import pack
from engine.quant.emulation import EmulatedDecoder
from engine.quant.preparation import principal_axes
from engine.quant.rotation import flat_orthogonal, hadamard, random_orthogonal, rotate, why_not
from engine.quant.texts import Text

BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, BIASES], ids=["plain", "head norms", "biases"])
def test_rotated_equals_plain_equals_the_served_decoder(
    options: dict[str, bool], make_decoder: Any, texts: list[Text]
) -> None:
    architecture, weights = make_decoder(**options)
    rotated = rotate(weights, architecture)
    packed = pack([text.ids for text in texts])
    served = PackedDecoder.from_weights(architecture, weights, 64)
    with torch.inference_mode():
        expected = served(packed.input_ids, packed.positions, packed.cu_seqlens)
        plain = EmulatedDecoder(architecture, weights).run(packed, {})
        turned = EmulatedDecoder(architecture, rotated.weights, rotated.unrotate).run(packed, {})
    torch.testing.assert_close(plain, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(turned, expected, atol=1e-4, rtol=1e-4)
    assert not torch.equal(rotated.weights["embed_tokens.weight"], weights["embed_tokens.weight"])


def test_label_rows_of_a_tied_head_stay_what_they_are(make_decoder: Any, texts: list[Text]) -> None:
    """Their logits under rotation, from the embedding's own rows."""
    architecture, weights = make_decoder()
    rotated = rotate(weights, architecture)
    packed = pack([text.ids for text in texts])
    rows = weights["embed_tokens.weight"][[4, 9]]
    with torch.inference_mode():
        plain = EmulatedDecoder(architecture, weights).run(packed, {}) @ rows.T
        turned = EmulatedDecoder(architecture, rotated.weights, rotated.unrotate).run(packed, {}) @ rows.T
    torch.testing.assert_close(turned, plain, atol=1e-4, rtol=1e-5)


def test_a_channel_that_stands_out_is_spread() -> None:
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    x[:, 5] *= 50
    turned = [x @ matrix(64).float() for matrix in (random_orthogonal, flat_orthogonal)]
    peak = [float((rows.abs().amax(-1) / rows.square().mean(-1).sqrt()).mean()) for rows in (x, *turned)]
    assert peak[2] < peak[1] < 0.6 * peak[0]


def test_orthogonal() -> None:
    sizes = (1, 2, 12, 24, 36, 64, 576, 896, 100, 7)  # the last two: no such Hadamard matrix is built
    for matrix in (hadamard(32), random_orthogonal(24).float(), *(flat_orthogonal(n).float() for n in sizes)):
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(len(matrix)), atol=1e-5, rtol=0)
    assert torch.equal(random_orthogonal(24), random_orthogonal(24))
    for size in (64, 576, 896, 960, 1536):
        magnitudes = flat_orthogonal(size).abs()
        assert float(magnitudes.max() - magnitudes.min()) < 1e-7
    with pytest.raises(ValueError, match="size = 24"):
        hadamard(24)


def test_norms_with_a_bias_are_refused(make_decoder: Any) -> None:
    architecture, weights = make_decoder()
    assert why_not(weights) is None
    weights["layers.1.mlp_norm.bias"] = torch.zeros(64)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp_norm\.bias"):
        rotate(weights, architecture)


def test_axes_are_a_basis_and_leave_the_function(make_decoder: Any, texts: list[Text]) -> None:
    architecture, weights = make_decoder()
    packed = pack([text.ids for text in texts])
    plain = EmulatedDecoder(architecture, weights)
    axes = principal_axes(plain, packed, None)
    torch.testing.assert_close(axes.T @ axes, torch.eye(64, dtype=torch.float64), atol=1e-10, rtol=0)
    assert axes[5, 0].abs() > 0.9  # the channel that stands out is the first axis
    rotated = rotate(weights, architecture, axes)
    with torch.inference_mode():
        turned = EmulatedDecoder(architecture, rotated.weights, rotated.unrotate).run(packed, {})
        torch.testing.assert_close(turned, plain.run(packed, {}), atol=1e-4, rtol=1e-4)
