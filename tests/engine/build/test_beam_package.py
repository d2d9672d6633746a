"""What a build of beams refuses before it compiles anything, and bounds that make no sense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.artifact import Artifact
from engine.beam.bounds import BeamBounds
from engine.build.beam_package import check_beam
from engine.build.spec import BuildSpec
from engine.errors import ArtifactError, ConfigError
from engine.models.checkpoint import Checkpoint, load_checkpoint
from engine.packed import BatchBounds
from tiny_checkpoints import save_checkpoint

BOUNDS = BatchBounds(samples=16, tokens=4096, tokens_per_sample=128)
SPEC = BuildSpec(Path("m"), Path("out"), "tiny", bounds=BOUNDS, beam=BeamBounds(4, 2, 8))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("causal")
    return load_checkpoint(save_checkpoint(folder, "LlamaForCausalLM"), max_tokens=128)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0, 2, 8), "beam.width = 0: must be from 1 to 512"),
        ((513, 2, 8), "beam.width = 513: must be from 1 to 512"),
        ((4, 0, 8), "beam.steps = 0: must be from 1 to 8"),
        ((4, 9, 8), "beam.steps = 9: must be from 1 to 8"),
        ((4, 2, 0), "beam.prompts = 0: must be at least 1"),
    ],
)
def test_bounds(values: tuple[int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BeamBounds(*values)


def test_what_can_be_served(checkpoint: Checkpoint) -> None:
    check_beam(SPEC, checkpoint)
    check_beam(replace(SPEC, beam=None), replace(checkpoint, lm_head=None))
    assert SPEC.max_positions == 130


@pytest.mark.parametrize(
    ("bounds", "beam", "said"),
    [
        (
            BatchBounds(16, 4096, 2049),
            BeamBounds(4, 2, 8),
            "tokens_per_sample = 2049: prompts of beams have at",
        ),
        (BOUNDS, BeamBounds(4, 2, 17), r"beam_prompts = 17: exceeds bounds.samples = 16"),
    ],
)
def test_bounds_that_do_not_fit(
    checkpoint: Checkpoint, bounds: BatchBounds, beam: BeamBounds, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_beam(replace(SPEC, bounds=bounds, beam=beam), checkpoint)


def test_a_model_without_a_language_model_head(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="beam_width = 4: the checkpoint has no language model head"):
        check_beam(SPEC, replace(checkpoint, lm_head=None))


def test_a_missing_package_is_told(tiny_beam: Any, tmp_path: Path) -> None:
    for file in tiny_beam.artifact.iterdir():
        if file.name != "beam_step.pt2":
            (tmp_path / file.name).symlink_to(file)
    mend = "--beam-width 100 --beam-steps 4 --beam-prompts 8"
    with pytest.raises(ArtifactError, match=rf"file 'beam_step\.pt2' is missing.*{mend}"):
        Artifact.open(tmp_path)
