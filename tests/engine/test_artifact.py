"""Opening an artifact: what it offers, and every way in which it may not fit this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import Artifact
from engine.errors import ArtifactError, ConfigError
from engine.manifest import FORMAT, sealed
from engine.store import ArtifactStore


@pytest.fixture
def copy(tiny_causal: Any, tmp_path: Path) -> Path:
    """An artifact to be damaged."""
    return Path(shutil.copytree(tiny_causal.artifact, tmp_path / "copy"))


@pytest.fixture
def change(copy: Path) -> Callable[..., Path]:
    """Writes other values into its manifest, as a build would that had them."""

    def write(**values: object) -> Path:
        file = copy / "manifest.json"
        file.write_text(json.dumps(sealed(json.loads(file.read_text()) | values)))
        return copy

    return write


def test_language_model(tiny_causal: Any) -> None:
    artifact = Artifact.open(tiny_causal.artifact, device="cpu")
    assert artifact.manifest.family == "qwen3"
    assert artifact.manifest.head == "language model"
    assert artifact.head_weight is not None
    assert artifact.score_weight is None
    width = artifact.manifest.architecture["hidden_size"]
    assert artifact.head_weight.shape == (artifact.manifest.architecture["vocab_size"], width)
    assert artifact.tokenizer("yes no")["input_ids"]
    assert artifact.manifest.parity.max_abs_error < 1e-3
    assert len(artifact.digest) == 64


def test_classifier(tiny_classifier: Any) -> None:
    artifact = Artifact.open(tiny_classifier.artifact, device="cpu")
    assert artifact.manifest.labels == ("bad", "fair", "good")
    assert artifact.score_weight is not None
    assert artifact.score_weight.shape[0] == 3
    assert artifact.head_weight is None
    assert artifact.manifest.parity.quantity == "score"


def test_digest_names_the_content(tiny_causal: Any, change: Callable[..., Path]) -> None:
    original = Artifact.open(tiny_causal.artifact)
    assert Artifact.open(tiny_causal.artifact).digest == original.digest
    assert Artifact.open(change(name="other")).digest != original.digest


@pytest.mark.parametrize("device", ["gpu", "", "meta", "cuda:x"])
def test_unknown_device(tiny_causal: Any, device: str) -> None:
    with pytest.raises(ConfigError, match=f'device = {device!r}: must be "cpu", "cuda" or "cuda:N"'):
        Artifact.open(tiny_causal.artifact, device=device)
    with pytest.raises(ConfigError, match=f"device = {device!r}: "):
        ArtifactStore({}, device=device)


def test_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"nowhere: no readable manifest\.json .*boundgen build --model"):
        Artifact.open(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "null", '{"name": "x"}', "\x00\xff"])
def test_garbled_manifest(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"manifest\.json: garbled .*boundgen build --model"):
        Artifact.open(copy)


def test_truncated_manifest(copy: Path) -> None:
    file = copy / "manifest.json"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ArtifactError, match="garbled"):
        Artifact.open(copy)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 99}, f"format = 99, this boundgen reads format {FORMAT}"),
        ({"dtype": "int3"}, "dtype = 'int3'"),
        ({"surprise": 1}, "surprise = 1"),
        ({"bounds": {"samples": 0, "tokens": 8, "tokens_per_sample": 8}}, "bounds.*samples = 0"),
        ({"architecture": {}}, "architecture = {}: vocab_size: required"),
        ({"files": {}}, "files: the manifest has no digest of 'model.pt2'"),
        ({"files": {"../../etc/passwd": "0"}}, "files = .*outside the artifact"),
        (
            {"device": "cuda"},
            "device = 'cuda', but 'cpu' is asked for; rebuild it .*boundgen build --model .*--device cpu",
        ),
        ({"torch": "2.5.1"}, r"torch = '2\.5', but this machine has '.*'; rebuild"),
        (
            {"device_arch": "aarch64-DEFAULT"},
            "device_arch = 'aarch64-DEFAULT', but this machine has '.*'; rebuild",
        ),
        ({"cpu_features": ["avx1024"]}, "cpu_features: this processor lacks avx1024; rebuild"),
    ],
)
def test_misfit(change: Callable[..., Path], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(change(**values))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_layers", 0, "num_layers = 0: must be at least 1"),
        ("hidden_size", "", "hidden_size: must be a whole number"),
        (
            "rope",
            {"kind": "default", "inv_freq": [], "scaling": 1.0},
            "rope.inv_freq: 0 values for head_dim = 16",
        ),
    ],
)
def test_an_architecture_that_is_none(
    change: Callable[..., Path], key: str, value: object, said: str
) -> None:
    architecture = Artifact.open(change()).manifest.architecture
    with pytest.raises(ArtifactError, match=rf"manifest\.json: architecture = .*{said}.*rebuild it"):
        Artifact.open(change(architecture=architecture | {key: value}))


def test_a_manifest_changed_by_hand(copy: Path) -> None:
    """It holds a digest of everything else: what was written over it is not believed."""
    file = copy / "manifest.json"
    built = json.loads(file.read_text())
    bounds = {name: 20 * value for name, value in built["bounds"].items()}
    unsealed = {key: value for key, value in built.items() if key != "digest"}
    for values in (built | {"bounds": bounds}, built | {"labels": ["a"]}, unsealed):
        file.write_text(json.dumps(values))
        for verify in (True, False):
            with pytest.raises(
                ArtifactError, match=r"manifest\.json: changed since the build .*rebuild it: boun"
            ):
                Artifact.open(copy, verify=verify)
    file.write_text(json.dumps(dict(reversed(built.items())), indent=8))  # written otherwise, the same
    assert Artifact.open(copy).name


def test_another_patch_of_torch_fits(change: Callable[..., Path]) -> None:
    release = ".".join(torch.__version__.split(".")[:2])
    assert Artifact.open(change(torch=f"{release}.99+cu999")).name


@pytest.mark.parametrize(
    "name", ["model.pt2", "weights.safetensors", "native.so", "tokenizer/tokenizer.json"]
)
def test_missing_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(ArtifactError, match=f"file '{name}' is missing; copy it again or rebuild"):
        Artifact.open(copy)


def test_changed_file(copy: Path) -> None:
    file = copy / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"'weights\.safetensors' is not the one that was built"):
        Artifact.open(copy)
    assert Artifact.open(copy, verify=False).name  # trusted storage: not looked at


def test_truncated_weights_that_were_not_verified(copy: Path) -> None:
    file = copy / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        Artifact.open(copy, verify=False)


def test_without_tokenizer(copy: Path) -> None:
    file = copy / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"] = {k: v for k, v in manifest["files"].items() if not k.startswith("tokenizer/")}
    file.write_text(json.dumps(sealed(manifest)))
    shutil.rmtree(copy / "tokenizer")
    artifact = Artifact.open(copy)
    with pytest.raises(ArtifactError, match="has no tokenizer"):
        _ = artifact.tokenizer


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_artifact_on_a_machine_without(change: Callable[..., Path]) -> None:
    with pytest.raises(ArtifactError, match=r"device = 'cuda', but torch .* sees no CUDA device"):
        Artifact.open(change(device="cuda"), device="cuda")
