"""Tiny random checkpoints of every supported family, written by transformers; one function, no fixtures.

Weights are wide: with transformers' own 0.02 all attention is uniform and a wrong rotation hardly shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCAB = 331  # prime, so that no kernel's tile divides it

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


def save_checkpoint(folder: Path, model_class: str, **options: Any) -> Path:
    """A random checkpoint of a transformers class, its configuration's `options` over small defaults."""
    import torch
    import transformers

    config_class = getattr(transformers, model_class).config_class
    torch.manual_seed(7)
    model = getattr(transformers, model_class)(config_class(**(_SIZES | options))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                name.endswith("bias") or "norm" in name
            ):  # initialised to constants that would hide an omission
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(folder)
    return folder
