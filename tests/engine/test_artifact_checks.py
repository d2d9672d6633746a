"""The command that mends an artifact builds the same one, for this machine."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from engine.artifact_checks import how_to_mend
from engine.manifest import Manifest, read_manifest
from engine.models.architecture import Architecture
from engine.models.plan import choose_plan
from engine.packed import BatchBounds
from tiny_models import TinyModel


def words(manifest: Manifest) -> dict[str, str]:
    """Options and values of the command."""
    _, command = how_to_mend(Path("out"), manifest, torch.device("cuda", 0)).split(": ", 1)
    boundgen, build, *options = shlex.split(command)
    assert (boundgen, build) == ("boundgen", "build")
    return dict(zip(options[::2], options[1::2], strict=True))


def test_bounds_and_device_are_those_of_the_artifact(tiny_causal: TinyModel) -> None:
    manifest, _ = read_manifest(tiny_causal.artifact)
    bounds = BatchBounds(samples=3, tokens=70, tokens_per_sample=40)
    found = words(manifest.model_copy(update={"bounds": bounds}))
    assert found["--model"] == manifest.source.path
    assert (found["--samples"], found["--tokens-per-request"], found["--tokens-per-sample"]) == (
        "3",
        "70",
        "40",
    )
    assert found["--device"] == "cuda"
    assert "--precision" not in found
    assert "--beam-width" not in found


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_precision_is_asked_for_again(tiny_causal: TinyModel, precision: str) -> None:
    manifest, _ = read_manifest(tiny_causal.artifact)
    architecture = Architecture.from_manifest(manifest.architecture)
    plan = choose_plan(architecture, precision, arch=90, static=True)
    assert words(manifest.model_copy(update={"plan": plan.to_manifest()}))["--precision"] == precision


def test_so_are_beams(tiny_beam: TinyModel) -> None:
    manifest, _ = read_manifest(tiny_beam.artifact)
    assert manifest.beam is not None
    found = words(manifest)
    for key in ("width", "steps", "prompts"):
        assert found[f"--beam-{key}"] == str(getattr(manifest.beam.bounds, key))
