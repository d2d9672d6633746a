"""A small decoder's architecture and random weights, for tests that build decoders of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.models.architecture import Architecture, Rope
from engine.models.decoder import PackedDecoder


def make_architecture(**changes: Any) -> Architecture:
    """Three layers, widths that are no multiples of 128; `changes`: other values of Architecture's fields."""
    inv_freq = tuple((1.0 / 10000 ** (torch.arange(0, 64, 2) / 64)).tolist())
    sizes: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 160, "intermediate_size": 192, "num_layers": 3, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 64, "norm_eps": 1e-6, "rope": Rope("default", inv_freq, 1.0),
    }  # fmt: skip
    return Architecture(**(sizes | changes))


def random_weights(architecture: Architecture, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The same ones every time; seeds torch. inv_freq stays float32."""
    torch.manual_seed(0)
    shapes = {name: x.shape for name, x in PackedDecoder(architecture, 64).state_dict().items()}
    weights = {
        name: torch.rand(shape) + 0.5 if "norm" in name else torch.randn(shape) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }
    weights = {name: weight.to(dtype) for name, weight in weights.items()}
    return weights | {"inv_freq": torch.tensor(architecture.rope.inv_freq)}
