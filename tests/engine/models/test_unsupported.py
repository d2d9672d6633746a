"""No option of a checkpoint is ever ignored: what is not served is an error with its name and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.models.checkpoint import load_checkpoint
from engine.models.family import known_families
from tiny_checkpoints import save_checkpoint


def edited(path: Path, **options: Any) -> Path:
    """The checkpoint with options written into its config.json, as a user would find them there."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    return path


CASES = [
    ("Llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ("Llama", {"pretraining_tp": 2}, "pretraining_tp = 2"),
    ("Llama", {"sliding_window": 64}, "sliding_window = 64"),
    ("Llama", {"rope_interleaved": True}, "rope_interleaved = True"),
    ("Llama", {"num_key_value_heads": 4}, "num_key_value_heads = 4: must divide num_attention_heads = 6"),
    ("Llama", {"logit_scale": 0.5}, "logit_scale = 0.5: unknown option"),
    ("Llama", {"layer_types": ["sliding_attention"] * 3}, "layer_types = .*unknown option"),
    ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("Qwen2", {"hidden_act": "relu"}, "hidden_act = 'relu'"),
    ("Qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "use_sliding_window = True"),
    ("Qwen2", {"use_sliding_window": True, "max_window_layers": 99}, "use_sliding_window = True"),
    (
        "Qwen2",
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        r"layer_types\[1\] = ",
    ),
    ("Qwen2", {"attention_bias": False}, "attention_bias = False: unknown option"),
    ("Qwen3", {"use_sliding_window": True, "max_window_layers": 0}, "use_sliding_window = True"),
    ("Qwen3", {"mlp_bias": True}, "mlp_bias = True: unknown option"),
    ("Qwen3", {"is_decoder": False}, "is_decoder = False: unknown option"),
]


@pytest.mark.parametrize(("family", "options", "message"), CASES)
def test_unsupported_option(family: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = edited(save_checkpoint(tmp_path / "m", f"{family}ForCausalLM", head_dim=8), **options)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(path, max_tokens=64)


def test_quantized_checkpoint(tmp_path: Path) -> None:
    path = edited(
        save_checkpoint(tmp_path / "m", "LlamaForCausalLM"),
        quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"},
    )
    with pytest.raises(ConfigError, match=r"quantization_config = .*fp8"):
        load_checkpoint(path, max_tokens=64)


def test_unknown_option_may_be_ignored_explicitly(tmp_path: Path) -> None:
    path = edited(
        save_checkpoint(tmp_path / "m", "Qwen3ForCausalLM", head_dim=8), my_note="trained on a Tuesday"
    )
    with pytest.raises(ConfigError, match="my_note"):
        load_checkpoint(path, max_tokens=64)
    assert load_checkpoint(path, max_tokens=64, ignore=["my_note"]).family == "qwen3"


def test_unknown_model_type_lists_the_known_ones(tmp_path: Path) -> None:
    from transformers import MistralConfig

    MistralConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model_type = 'mistral': .*llama, qwen2, qwen3"):
        load_checkpoint(tmp_path, max_tokens=64)


def test_unsupported_class(tmp_path: Path) -> None:
    path = edited(
        save_checkpoint(tmp_path / "m", "Qwen3ForCausalLM"), architectures=["Qwen3ForTokenClassification"]
    )
    with pytest.raises(ConfigError, match=r"architectures = .*TokenClassification"):
        load_checkpoint(path, max_tokens=64)


def test_families_are_found_by_their_modules() -> None:
    assert set(known_families()) == {"llama", "qwen2", "qwen3"}
