"""`boundgen build`: options that must come together, before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.beam.bounds import BeamBounds
from tools.commands.build import make_beam, read_texts
from tools.errors import UserError


@pytest.mark.parametrize(("width", "steps"), [(100, None), (None, 4)])
def test_width_and_steps_go_together(width: int | None, steps: int | None) -> None:
    with pytest.raises(UserError, match="--beam-width, --beam-steps: they go together"):
        make_beam(width, steps, 16)


def test_beams_are_only_built_when_asked_for() -> None:
    assert make_beam(None, None, 16) is None
    assert make_beam(100, 4, 16) == BeamBounds(width=100, steps=4, prompts=16)


def test_calibration_texts_that_are_none_are_one_message(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\ntwo\n", encoding="utf-8")
    assert read_texts(None) == ()
    assert read_texts(path) == ("one", "two")
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match=r"--calibration = '.*texts\.txt': is no UTF-8 text"):
        read_texts(path)
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(UserError, match=r"--calibration = '.*texts\.txt': holds no text"):
        read_texts(path)
