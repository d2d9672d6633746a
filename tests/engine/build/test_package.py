"""Whole builds of tiny checkpoints: compiled equals transformers, and a failing build changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.artifact import Artifact
from engine.build import BuildSpec, build_artifact
from engine.errors import ArtifactError, ConfigError
from engine.manifest import Parity
from engine.packed import BatchBounds, pack
from tiny_checkpoints import VOCAB, save_checkpoint

BOUNDS = BatchBounds(samples=16, tokens=512, tokens_per_sample=128)
LENGTHS = (1, 128, 2, 77, 31, 1, 64)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
WAIT_S = 60
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2ForCausalLM", {"rope_parameters": YARN, "head_dim": 12}),
}


@pytest.fixture
def build(tmp_path: Path) -> Any:
    def run(path: Path, say: Any = lambda stage: None, **options: Any) -> Path:
        return build_artifact(
            BuildSpec(path, tmp_path / "out" / "artifact", "tiny", bounds=BOUNDS, **options), say
        )

    return run


def neighbours(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_compiled_equals_transformers(case: str, tmp_path: Path, build: Any) -> None:
    model_class, options = CASES[case]
    checkpoint = save_checkpoint(tmp_path / "m", model_class, **options)
    stages: list[str] = []
    out = build(checkpoint, stages.append)
    assert stages[-1] == "writing the artifact"
    assert len(stages) == len(set(stages)) >= 6
    assert neighbours(out.parent) == ["artifact"]
    artifact = Artifact.open(out)
    lanes = artifact.open_lanes(1)
    generator = torch.Generator().manual_seed(5)
    samples = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]
    hidden = lanes.executor.submit(lanes.forward, pack(samples)).result(WAIT_S)
    lanes.close()
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    assert artifact.head_weight is not None
    with torch.inference_mode():
        theirs = torch.stack([reference(torch.tensor([ids])).logits[0, -1] for ids in samples])
    ours = hidden @ artifact.head_weight.T
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), atol=1e-3, rtol=0)
    assert artifact.manifest.parity.max_abs_error < 1e-3


def test_bfloat16(tmp_path: Path, build: Any) -> None:
    out = build(save_checkpoint(tmp_path / "m", "Qwen3ForCausalLM", head_dim=16), dtype="bfloat16")
    artifact = Artifact.open(out)
    assert artifact.head_weight is not None
    assert artifact.head_weight.dtype == torch.bfloat16
    assert artifact.manifest.dtype == "bfloat16"
    assert 1e-3 < artifact.manifest.parity.max_abs_error < 1.0


def test_build_that_fails_leaves_the_artifact_that_was_there(tmp_path: Path, build: Any) -> None:
    checkpoint = save_checkpoint(tmp_path / "m", "LlamaForCausalLM")
    out = tmp_path / "out" / "artifact"
    out.mkdir(parents=True)
    (out / "manifest.json").write_text('{"format": 0}')
    (checkpoint / "config.json").write_text(
        json.dumps(json.loads((checkpoint / "config.json").read_text()) | {"hidden_act": "gelu"})
    )
    with pytest.raises(ConfigError, match="hidden_act = 'gelu'"):
        build(checkpoint)
    assert neighbours(out.parent) == ["artifact"]
    assert (out / "manifest.json").read_text() == '{"format": 0}'


def test_existing_artifact_is_replaced(tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "engine.build.package.compile_package", lambda exported, path: path.write_bytes(b"package")
    )
    out = tmp_path / "out" / "artifact"
    out.mkdir(parents=True)
    (out / "manifest.json").write_text("{}")
    (out / "old").write_text("x")
    parity = {"reference": "none", "quantity": "score", "samples": 1, "tokens": 1, "max_abs_error": 0.0}
    parity |= {
        "mean_abs_error": 0.0,
        "top1_agreement": None,
        "max_abs_tolerance": 1.0,
        "mean_abs_tolerance": 1.0,
    }
    monkeypatch.setattr("engine.build.package._measure", lambda *_: (Parity.model_validate(parity), None))
    build(save_checkpoint(tmp_path / "m", "LlamaForCausalLM"))
    assert neighbours(out.parent) == ["artifact"]
    assert not (out / "old").exists()
    assert Artifact.open(out).manifest.parity.reference == "none"


def test_directory_that_is_no_artifact_is_left_alone(tmp_path: Path, build: Any) -> None:
    out = tmp_path / "out" / "artifact"
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="is no artifact, so it is left alone"):
        build(tmp_path / "m")
    assert (out / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name = ''"),
        ({"device": "tpu"}, "device = 'tpu'"),
        ({"dtype": "int8"}, "dtype = 'int8'"),
    ],
)
def test_spec(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildSpec(**({"model": tmp_path, "out": tmp_path / "o", "name": "x"} | options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_build_on_a_machine_without(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"device = 'cuda': torch .* sees no CUDA device"):
        BuildSpec(tmp_path, tmp_path / "o", "x", device="cuda")
