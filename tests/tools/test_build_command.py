"""`boundgen build`: options that must come together, before anything is built."""

from __future__ import annotations

import pytest

from engine.beam.bounds import BeamBounds
from tools.commands.build import make_beam
from tools.errors import UserError


@pytest.mark.parametrize(("width", "steps"), [(100, None), (None, 4)])
def test_width_and_steps_go_together(width: int | None, steps: int | None) -> None:
    with pytest.raises(UserError, match="--beam-width, --beam-steps: they go together"):
        make_beam(width, steps, 16)


def test_beams_are_only_built_when_asked_for() -> None:
    assert make_beam(None, None, 16) is None
    assert make_beam(100, 4, 16) == BeamBounds(width=100, steps=4, prompts=16)
