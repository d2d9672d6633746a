"""A tiny random decoder whose sizes every scheme serves, in the shapes that checkpoints have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.models.architecture import Architecture, Rope
from engine.quant.texts import Text

VOCAB, HIDDEN, HEAD_DIM, WIDE = 97, 64, 16, 128


def make_architecture(**options: bool) -> Architecture:
    inv_freq = tuple(10000.0 ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2))
    return Architecture(
        VOCAB, HIDDEN, WIDE, 2, 4, 2, HEAD_DIM, 1e-5, Rope("default", inv_freq, 1.0), **options
    )


def make_weights(a: Architecture) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int, scale: float = 0.2, around: float = 0.0) -> Tensor:
        return around + scale * torch.randn(*shape, generator=generator)

    shapes = {
        "attention.qkv": (a.q_width + 2 * a.kv_width, a.hidden_size, a.qkv_bias),
        "output": (a.hidden_size, a.q_width, a.output_bias),
        "gate_up": (2 * a.intermediate_size, a.hidden_size, a.mlp_bias),
        "down": (a.hidden_size, a.intermediate_size, a.mlp_bias),
    }
    weights = {"embed_tokens.weight": random(a.vocab_size, a.hidden_size, scale=1.0)}
    weights["embed_tokens.weight"][:, 5] *= 20  # a channel that stands out, as in real models
    for layer in range(a.num_layers):
        for name, (rows, columns, bias) in shapes.items():
            weights[f"layers.{layer}.{name}.weight"] = random(rows, columns)
            if bias:
                weights[f"layers.{layer}.{name}.bias"] = random(rows, scale=0.5)
        for name in ("attention_norm", "mlp_norm"):
            weights[f"layers.{layer}.{name}.weight"] = random(a.hidden_size, around=1.0)
        for name in ("q_norm", "k_norm") if a.qk_norm else ():
            weights[f"layers.{layer}.attention.{name}.weight"] = random(a.head_dim, around=1.0)
    weights["norm.weight"] = random(a.hidden_size, around=1.0)
    weights["inv_freq"] = torch.tensor(a.rope.inv_freq)
    return weights


@pytest.fixture
def make_decoder() -> Callable[..., tuple[Architecture, dict[str, Tensor]]]:
    def make(**options: bool) -> tuple[Architecture, dict[str, Tensor]]:
        architecture = make_architecture(**options)
        return architecture, make_weights(architecture)

    return make


@pytest.fixture
def texts() -> list[Text]:
    """48 of different lengths, with two leading tokens of their own and two labels."""
    generator = torch.Generator().manual_seed(9)
    lengths = torch.randint(1, 30, (48,), generator=generator).tolist()
    return [
        Text((7, 8, *torch.randint(0, VOCAB, (n,), generator=generator).tolist()), (4, 9), 2) for n in lengths
    ]
