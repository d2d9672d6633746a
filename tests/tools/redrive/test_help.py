"""The help says what a newcomer has to know before anything is sent."""

from __future__ import annotations

from typer.testing import CliRunner

from tools.cli import app


def test_the_help_has_an_example_and_says_that_nothing_is_written_by_default():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        app, ["redrive", "--help"]
    )
    text = " ".join(result.output.split())
    assert result.exit_code == 0, result.output
    for said in (
        "Example: boundgen redrive",
        "a dry run unless --send is given",
        "--from-offset",
        "no group",
    ):
        assert said in text
