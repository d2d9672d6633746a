"""Files that are missing, damaged or hold other tensors than they should: an error that names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file

from engine.errors import ArtifactError, ConfigError
from engine.models.checkpoint import load_checkpoint
from engine.models.gguf_file import check_gguf
from engine.models.weights import map_separate_projections
from tiny_checkpoints import save_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "m", "Qwen3ForCausalLM", head_dim=8)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "lm_head.weight",
        "model.norm.weight",
    ],
)
def test_missing_tensor(checkpoint: Path, name: str) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=f"{name}.*missing"):
        load_checkpoint(checkpoint, max_tokens=64)


def test_unexpected_tensor(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    extra = {"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}
    save_file(load_file(file) | extra, file, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"q_proj\.bias.*unexpected"):
        load_checkpoint(checkpoint, max_tokens=64)


def test_tensor_of_another_shape(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    save_file(load_file(file) | {"model.norm.weight": torch.ones(47)}, file, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"norm\.weight|mismatched"):
        load_checkpoint(checkpoint, max_tokens=64)


def test_base_model_saved_under_the_name_of_a_language_model(tmp_path: Path) -> None:
    """Tensors without the prefix "model." and no head, as embedding checkpoints are published."""
    path = save_checkpoint(tmp_path / "m", "Qwen3Model", head_dim=8, tie_word_embeddings=True)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["Qwen3ForCausalLM"]}))
    assert "layers.0.mlp.up_proj.weight" in load_file(path / "model.safetensors")
    loaded = load_checkpoint(path, max_tokens=64)
    assert loaded.tied
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": False}))
    with pytest.raises(ArtifactError, match=r"lm_head\.weight.*missing"):
        load_checkpoint(path, max_tokens=64)


def test_mapping_is_strict_both_ways(checkpoint: Path) -> None:
    loaded = load_checkpoint(checkpoint, max_tokens=64)
    state = loaded.reference.base_model.state_dict()
    with pytest.raises(ArtifactError, match=r"'layers\.2\.mlp\.gate_proj\.weight' is missing"):
        map_separate_projections(
            {k: v for k, v in state.items() if k != "layers.2.mlp.gate_proj.weight"}, loaded.architecture
        )
    with pytest.raises(ArtifactError, match=r"unexpected tensor 'layers\.0\.extra'"):
        map_separate_projections(state | {"layers.0.extra": torch.ones(1)}, loaded.architecture)


def test_truncated_weights(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match="cannot load"):
        load_checkpoint(checkpoint, max_tokens=64)


def test_garbled_configuration(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "qwen3", ')
    with pytest.raises(ArtifactError, match="cannot load"):
        load_checkpoint(checkpoint, max_tokens=64)


@pytest.mark.parametrize("name", ["nothing", "file.bin"])
def test_neither_directory_nor_gguf(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=f"model = .*{name}"):
        load_checkpoint(tmp_path / name, max_tokens=64)


def test_gguf_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ArtifactError, match=r"broken\.gguf"):
        load_checkpoint(path, max_tokens=64)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.rope.scaling.type", "yarn", "rope.scaling.type = 'yarn'"),
        ("llama.rope.scaling.factor", 4.0, "rope.scaling.factor = 4.0"),
        ("llama.attention.sliding_window", 64, "sliding_window = 64"),
        ("llama.attention.key_length", 99, "key_length = 99"),
    ],
)
def test_gguf_key_that_transformers_drops(
    checkpoint: Path, tmp_path: Path, key: str, value: str | float | int, message: str
) -> None:
    architecture = load_checkpoint(checkpoint, max_tokens=64).architecture
    with pytest.raises(ConfigError, match=message):
        check_gguf(_write_gguf(tmp_path / "m.gguf", {key: value}, "token_embd.weight"), architecture)


def test_gguf_tensor_that_transformers_drops(checkpoint: Path, tmp_path: Path) -> None:
    architecture = load_checkpoint(checkpoint, max_tokens=64).architecture
    check_gguf(_write_gguf(tmp_path / "good.gguf", {}, "blk.0.attn_q.weight"), architecture)
    with pytest.raises(ArtifactError, match=r"rope_freqs\.weight"):
        check_gguf(_write_gguf(tmp_path / "bad.gguf", {}, "rope_freqs.weight"), architecture)


def _write_gguf(path: Path, keys: dict[str, str | float | int], tensor: str) -> Path:
    writer = GGUFWriter(path, "llama")
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_tensor(tensor, np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
