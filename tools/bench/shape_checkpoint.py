"""A checkpoint of a benchmarked shape with random weights, as transformers would save it: what a build takes.

Kept in the cache. Embeddings of deviation 1 and matrices of 0.03 keep the residual stream's size through all
layers, as in trained models; the head is a matrix of its own, so that logits stay within a few units.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from engine.models.architecture import Architecture

DEVIATION, EMBEDDING_DEVIATION = 0.03, 1.0
MAX_POSITIONS = 4096


def shape_checkpoint(name: str, a: Architecture, cache: Path, device: str = "cpu") -> Path:
    """The checkpoint's directory in `cache`, written now if it is not there; bfloat16. A GPU as `device`
    draws the numbers much faster; they are others."""
    target = cache / "shapes" / f"{name}-{a.num_layers}-{torch.device(device).type}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            folder = Path(scratch, "checkpoint")
            _write(a, folder, device)
            try:
                folder.rename(target)
            except OSError:
                if not target.exists():  # else another process was quicker
                    raise
    return target


def _write(a: Architecture, folder: Path, device: str) -> None:
    kind = "Qwen3" if a.qk_norm else "Qwen2" if a.qkv_bias else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=a.vocab_size,
        hidden_size=a.hidden_size,
        intermediate_size=a.intermediate_size,
        num_hidden_layers=a.num_layers,
        num_attention_heads=a.num_heads,
        num_key_value_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        rms_norm_eps=a.norm_eps,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": _theta(a)},
        tie_word_embeddings=False,
        architectures=[f"{kind}ForCausalLM"],
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model: Any = getattr(transformers, f"{kind}ForCausalLM")(config)
    generator = torch.Generator(device).manual_seed(0)
    tensors = {each: _draw(each, x.shape, generator) for each, x in model.state_dict().items()}
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _draw(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """bfloat16, on the CPU."""
    how: dict[str, Any] = {"generator": generator, "device": generator.device}
    if "norm" in name:
        drawn = torch.rand(shape, **how) + 0.5
    else:
        drawn = torch.randn(shape, **how) * (EMBEDDING_DEVIATION if "embed" in name else DEVIATION)
    return drawn.bfloat16().cpu()


def _theta(a: Architecture) -> float:
    """inv_freq[i] = theta ** (-2 i / head_dim)"""
    return float(round(a.rope.inv_freq[1] ** (-a.head_dim / 2)))
