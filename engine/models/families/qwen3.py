"""Qwen3, embedding and reranker checkpoints included: norms over each head of q and k, explicit head_dim."""

from __future__ import annotations

from typing import Any

from engine.models.architecture import Architecture
from engine.models.family import Family
from engine.models.model_options import ModelOptions
from engine.models.rope import compute_rope
from engine.models.weights import map_separate_projections


def read(config: Any, options: ModelOptions, max_tokens: int) -> Architecture:
    num_heads = options.take_size("num_attention_heads")
    head_dim = options.take_size("head_dim")
    attention_bias = options.take_flag("attention_bias")
    options.require("hidden_act", ("silu",), "only silu is supported")
    options.require_full_attention()
    options.take("max_position_embeddings")
    options.take("rope_parameters")
    return Architecture(
        vocab_size=options.take_size("vocab_size"),
        hidden_size=options.take_size("hidden_size"),
        intermediate_size=options.take_size("intermediate_size"),
        num_layers=options.take_size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=options.take_size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        norm_eps=float(options.take("rms_norm_eps")),
        rope=compute_rope(config, head_dim, max_tokens),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
    )


FAMILY = Family("qwen3", read, map_separate_projections)
