"""`boundgen build`: options that must come together, before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.beam.bounds import BeamBounds
from tools.commands.build import app, make_beam, read_texts
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--max-kl", "0.1"), "--max-kl: has no effect without --calibrate"),
        (("--min-winners", "0.5"), "--min-winners: has no effect without --calibrate"),
        (("--kernels", "portable"), "--kernels: has no effect without --precision"),
        (("--scaling", "static"), "--scaling: has no effect without --precision"),
        (("--calibration", "TEXTS"), "--calibration: has no effect without --precision or --calibrate"),
    ],
)
def test_an_option_that_nothing_would_look_at_is_refused(
    given: tuple[str, str], said: str, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one\n", encoding="utf-8")
    options = [str(texts) if each == "TEXTS" else each for each in given]
    result = CliRunner().invoke(app, ["--model", str(tmp_path), "--out", str(tmp_path / "out"), *options])
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)


def test_options_that_were_not_given_are_not_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--model", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "has no effect" not in str(result.exception)
