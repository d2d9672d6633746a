"""The MLP head: torch's own nn.Sequential as the oracle, and files that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from engine.artifact import Artifact
from engine.errors import ConfigError
from engine.heads.mlp import MlpHead, MlpOptions, read_layers
from engine.options import read_options

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


@pytest.fixture(scope="module")
def artifact(tiny_causal: Any) -> Artifact:
    return Artifact.open(tiny_causal.artifact)


def head(artifact: Artifact, folder: Path, **options: Any) -> MlpHead:
    given = {"weights": "mlp.safetensors", "labels": ["a", "b", "c"], **options}
    return MlpHead(read_options(MlpOptions, given), artifact, folder)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("normalized", [True, False])
def test_it_is_what_was_trained(
    artifact: Artifact, tmp_path: Path, activation: str, normalized: bool
) -> None:
    torch.manual_seed(0)
    between = ACTIVATIONS[activation]
    trained = nn.Sequential(
        nn.Linear(48, 20), between(), nn.Linear(20, 9, bias=False), between(), nn.Linear(9, 3)
    )
    save_file(trained.state_dict(), tmp_path / "mlp.safetensors")
    made = head(artifact, tmp_path, activation=activation, normalized=normalized)
    hidden = torch.randn(5, 48) * 3
    with torch.inference_mode():
        expected = trained(nn.functional.normalize(hidden, dim=-1) if normalized else hidden)
        logits, log_norm = made.compute(hidden)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(log_norm, expected.logsumexp(-1))
    assert made.value((logits, log_norm)).labels == ("a", "b", "c")


def test_a_single_logit_stands_against_a_zero(artifact: Artifact, tmp_path: Path) -> None:
    save_file({"0.weight": torch.ones(1, 48)}, tmp_path / "mlp.safetensors")
    logits, log_norm = head(artifact, tmp_path, labels=["good"]).compute(torch.randn(4, 48))
    torch.testing.assert_close((logits[:, 0] - log_norm).exp(), logits[:, 0].sigmoid())


@pytest.mark.parametrize(
    ("labels", "words"),
    [(["a", "b"], "gives 3 scores"), (["a", "b", "b"], "given twice"), ([], "at least 1")],
)
def test_labels_that_do_not_fit(artifact: Artifact, tmp_path: Path, labels: list[str], words: str) -> None:
    save_file({"0.weight": torch.ones(3, 48)}, tmp_path / "mlp.safetensors")
    with pytest.raises(ConfigError, match=words) as caught:
        head(artifact, tmp_path, labels=labels)
    assert caught.value.key == "labels"


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"0.weight": (8, 47)}, r"0.weight has shape \[8, 47\], not \[\*, 48\]"),
        ({"0.weight": (8, 48), "2.weight": (3, 9)}, r"2.weight has shape \[3, 9\], not \[\*, 8\]"),
        ({"0.weight": (8, 48), "0.bias": (7,)}, r"0.bias has shape \[7\], not \[8\]"),
        ({"0.bias": (7,)}, "0.weight has shape None"),
        ({"0.weight": (48,)}, r"0.weight has shape \[48\]"),
        ({"mlp.0.weight": (8, 48)}, "has a tensor 'mlp.0.weight'"),
        ({}, "has no layers"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str) -> None:
    path = tmp_path / "mlp.safetensors"
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, path)
    with pytest.raises(ConfigError, match=words) as caught:
        read_layers(path, 48, "cpu")
    assert caught.value.key == "weights"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "mlp.safetensors"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_layers(path, 48, "cpu")
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_layers(path, 48, "cpu")
