"""Every family and option that is served, packed, against transformers one sample at a time in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tiny_checkpoints import save_checkpoint

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
HIDDEN_TOLERANCE = 2e-4  # of values around 1: three layers in float32
SCORE_TOLERANCE = 1e-3
SHORT, LONG = [1.0, 1.1, 1.4, 2.0], [4.0] * 4  # longrope's factors for heads of 8
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 1000000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.3,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 256,
    },
}
if "proportional" in ROPE_INIT_FUNCTIONS:  # not in every transformers that is allowed
    ROPES["proportional"] = {
        "rope_type": "proportional",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "factor": 2.0,
    }
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama-tied": (LLAMA, {"tie_word_embeddings": True}),
    "llama-biases": (LLAMA, {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": (LLAMA, {"head_dim": 20}),
    "llama-no-grouping": (LLAMA, {"num_key_value_heads": 6}),
    "llama-one-kv-head": (LLAMA, {"num_key_value_heads": 1}),
    "llama-one-layer": (LLAMA, {"num_hidden_layers": 1}),
    "llama-eps": (LLAMA, {"rms_norm_eps": 1e-2}),
    "qwen2": (QWEN2, {}),
    "qwen2-tied": (QWEN2, {"tie_word_embeddings": True}),
    "qwen2-wide-heads": (QWEN2, {"head_dim": 16}),
    "qwen2-window-off": (QWEN2, {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": (QWEN3, {"head_dim": 8}),
    "qwen3-tied": (QWEN3, {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3-wide-heads": (QWEN3, {"head_dim": 32}),
    "qwen3-biases": (QWEN3, {"head_dim": 8, "attention_bias": True}),
    "qwen3-no-grouping": (QWEN3, {"head_dim": 8, "num_key_value_heads": 6}),
}


def require_same(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_language_model(case: str, tmp_path: Path, hidden_states: Any) -> None:
    model_class, options = CASES[case]
    checkpoint, ours, theirs = hidden_states(save_checkpoint(tmp_path / "m", model_class, **options))
    require_same(ours, theirs, HIDDEN_TOLERANCE)
    assert checkpoint.tied == options.get("tie_word_embeddings", False)
    head = checkpoint.reference.get_output_embeddings().weight
    require_same(
        (ours @ checkpoint.lm_head.T).log_softmax(-1), (theirs @ head.T).log_softmax(-1), SCORE_TOLERANCE
    )


def test_every_rope_type_is_tried() -> None:
    assert {"default", *ROPE_INIT_FUNCTIONS} == {rope["rope_type"] for rope in ROPES.values()}


@pytest.mark.parametrize("model_class", [LLAMA, QWEN2, QWEN3])
@pytest.mark.parametrize("rope", ROPES)
def test_rope(rope: str, model_class: str, tmp_path: Path, hidden_states: Any) -> None:
    path = save_checkpoint(tmp_path / "m", model_class, head_dim=8, rope_parameters=dict(ROPES[rope]))
    checkpoint, ours, theirs = hidden_states(path)
    assert checkpoint.architecture.rope.kind == ROPES[rope]["rope_type"]
    require_same(ours, theirs, HIDDEN_TOLERANCE)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_classifier_brings_its_score_head(
    family: str, tmp_path: Path, hidden_states: Any, samples: Any
) -> None:
    labels = {0: "no", 1: "maybe", 2: "yes"}
    path = save_checkpoint(
        tmp_path / "m", f"{family}ForSequenceClassification", head_dim=8, id2label=labels, pad_token_id=0
    )
    checkpoint, ours, _ = hidden_states(path)
    with torch.inference_mode():
        theirs = torch.cat([checkpoint.reference(torch.tensor([ids])).logits for ids in samples])
    assert checkpoint.labels == ("no", "maybe", "yes")
    assert checkpoint.lm_head is None
    require_same(ours @ checkpoint.score.T, theirs, SCORE_TOLERANCE)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_bare_model_has_no_head(family: str, tmp_path: Path, hidden_states: Any) -> None:
    checkpoint, ours, theirs = hidden_states(save_checkpoint(tmp_path / "m", f"{family}Model", head_dim=8))
    assert checkpoint.head == "none"
    require_same(ours, theirs, HIDDEN_TOLERANCE)


def test_a_sample_does_not_depend_on_its_neighbours(tmp_path: Path, hidden_states: Any, samples: Any) -> None:
    from engine.models.decoder import PackedDecoder
    from engine.packed import pack

    checkpoint, together, _ = hidden_states(save_checkpoint(tmp_path / "m", QWEN3, head_dim=8))
    decoder = PackedDecoder.from_weights(checkpoint.architecture, checkpoint.weights, 96)
    order = [4, 2, 0, 5, 1, 3]
    shuffled = pack([samples[i] for i in order])
    with torch.inference_mode():
        again = decoder(shuffled.input_ids, shuffled.positions, shuffled.cu_seqlens)
    require_same(again, together[order], HIDDEN_TOLERANCE)
