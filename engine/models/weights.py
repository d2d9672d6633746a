"""A checkpoint's tensors, renamed and fused into the decoder's; strict in both directions.

Names of the decoder: embed_tokens.weight, layers.N.{attention_norm,attention.qkv,output,mlp_norm,
gate_up,down}.weight (and .bias), norm.weight, inv_freq.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.errors import ArtifactError
from engine.models.architecture import Architecture

EMBEDDING = "embed_tokens.weight"
INV_FREQ = "inv_freq"
# Beside the decoder's, in the file of weights that comes with an artifact:
LM_HEAD = "lm_head.weight"  # absent where it is the embedding's
SCORE = "score.weight"
NARROW_HEAD, NARROW_HEAD_SCALE = "narrow_head.weight", "narrow_head.weight_scale"  # of a search in 8 bits
# Modules of a layer that hold its matrices, by what plans and schemes call them.
MODULES = {"qkv": "attention.qkv", "output": "output", "gate_up": "gate_up", "down": "down"}
OF_NO_DECODER = (LM_HEAD, SCORE, NARROW_HEAD, NARROW_HEAD_SCALE)
# decoder's name -> the checkpoint's, in the order in which rows are joined
_FUSED = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm"}


def map_separate_projections(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """From the layout that Llama and Qwen share: a matrix a projection, names of transformers' base model.

    ArtifactError names the first tensor that is missing, left over, or of another shape.
    """
    left = dict(state)

    def pop(name: str) -> Tensor:
        if name not in left:
            raise ArtifactError(f"checkpoint: tensor {name!r} is missing")
        return left.pop(name).detach()

    biased = {
        "attention.qkv": architecture.qkv_bias,
        "output": architecture.output_bias,
        "gate_up": architecture.mlp_bias,
        "down": architecture.mlp_bias,
    }
    norms = _NORMS | (_HEAD_NORMS if architecture.qk_norm else {})
    weights = {EMBEDDING: pop(EMBEDDING), "norm.weight": pop("norm.weight")}
    for layer in range(architecture.num_layers):
        prefix = f"layers.{layer}."
        for ours, theirs in norms.items():
            weights[f"{prefix}{ours}.weight"] = pop(f"{prefix}{theirs}.weight")
        for ours, parts in _FUSED.items():
            for kind in ("weight", "bias") if biased[ours] else ("weight",):
                rows = [pop(f"{prefix}{part}.{kind}") for part in parts]
                weights[f"{prefix}{ours}.{kind}"] = torch.cat(rows) if len(rows) > 1 else rows[0]
    if left:
        raise ArtifactError(f"checkpoint: unexpected tensor {min(left)!r}; its effect would be ignored")
    weights[INV_FREQ] = torch.tensor(architecture.rope.inv_freq, dtype=torch.float32)
    return weights


def convert_weights(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors contiguous in `dtype`, but the rotary frequencies: their error grows with the position."""
    return {
        name: (tensor if name == INV_FREQ else tensor.to(dtype)).contiguous()
        for name, tensor in weights.items()
    }
