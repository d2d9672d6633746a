"""Rotary frequencies: transformers' numbers, both namings of its configurations, and how far they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, LlamaConfig

from engine.errors import ConfigError
from engine.models.rope import compute_rope
from tiny_checkpoints import save_checkpoint

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def config(rope: dict[str, Any], **options: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        head_dim=8,
        max_position_embeddings=128,
        rope_parameters=dict(rope),
        **options,
    )


def test_default_frequencies_by_their_formula() -> None:
    rope = compute_rope(config({"rope_type": "default", "rope_theta": 100.0}), 8, 64)
    assert rope.inv_freq == pytest.approx([1.0, 100**-0.25, 0.1, 100**-0.75], rel=1e-6)
    assert rope.scaling == 1.0


@pytest.mark.parametrize(
    ("rope", "limit", "key"),
    [(DYNAMIC, 128, "max_position_embeddings"), (LONGROPE, 64, "original_max_position_embeddings")],
)
def test_types_that_follow_the_length_are_served_up_to_where_they_are_constant(
    rope: dict[str, Any], limit: int, key: str
) -> None:
    compute_rope(config(rope), 8, limit)
    with pytest.raises(
        ConfigError, match=rf"tokens_per_sample = {limit + 1}: .*{rope['rope_type']}.*{key} = {limit}"
    ):
        compute_rope(config(rope), 8, limit + 1)


def test_dynamic_really_changes_above_its_limit(tmp_path: Path) -> None:
    """What the error prevents: transformers' own frequencies of a longer sample are others."""
    path = save_checkpoint(
        tmp_path / "m", "LlamaModel", head_dim=8, max_position_embeddings=16, rope_parameters=dict(DYNAMIC)
    )
    model = AutoModel.from_pretrained(path)
    before = model.rotary_emb.inv_freq.clone()
    with torch.inference_mode():
        model(torch.arange(17)[None])
    assert not torch.equal(before, model.rotary_emb.inv_freq)


def test_partial_rotation_is_an_error() -> None:
    values = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
    with pytest.raises(ConfigError, match=r"partial_rotary_factor = 0\.5"):
        compute_rope(config(values), 8, 64)


def test_unknown_type_is_named_with_the_known_ones() -> None:
    strange = config({"rope_type": "default", "rope_theta": 1e4})
    strange.rope_parameters["rope_type"] = "spiral"
    with pytest.raises(ConfigError, match=r"rope_type = 'spiral': .*default.*yarn"):
        compute_rope(strange, 8, 64)


def test_frequencies_by_layer_type_are_an_error() -> None:
    strange = config({"rope_type": "default", "rope_theta": 1e4})
    strange.rope_parameters = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(ConfigError, match=r"rope_parameters = .*full_attention"):
        compute_rope(strange, 8, 64)


def test_names_of_older_transformers_mean_the_same(tmp_path: Path) -> None:
    """rope_theta and rope_scaling.type, as checkpoints of transformers 4 have them."""
    rope = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 128}
    path = save_checkpoint(tmp_path / "m", "Qwen2ForCausalLM", rope_parameters=dict(rope))
    new = compute_rope(AutoConfig.from_pretrained(path), 8, 64)
    written = json.loads((path / "config.json").read_text())
    scaling = written.pop("rope_parameters")
    written |= {"rope_theta": scaling.pop("rope_theta")}
    written["rope_scaling"] = {("type" if k == "rope_type" else k): v for k, v in scaling.items()}
    (path / "config.json").write_text(json.dumps(written))
    old = compute_rope(AutoConfig.from_pretrained(path), 8, 64)
    assert old == new
    assert old.inv_freq != compute_rope(config({"rope_type": "default", "rope_theta": 5e5}), 8, 64).inv_freq
