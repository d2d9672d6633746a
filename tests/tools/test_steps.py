"""Where nobody sees a spinner, long steps are told again and again, and short ones only twice."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tools.steps import Steps


@pytest.mark.parametrize(
    ("line_s", "middle"), [(0.0, ["send: 1 done after T", "send: 1 done after T"]), (9e9, [])]
)
def test_a_step_that_goes_on(line_s: float, middle: list[str]) -> None:
    said = io.StringIO()
    with Steps(Console(file=said), line_s) as say:
        say.advance()  # no step yet
        say("send")
        say.advance()
        say.advance(0)
        say("stop")
    told = re.sub(r"[0-9.]+ s$", "T", said.getvalue(), flags=re.MULTILINE).splitlines()
    assert told == ["send ...", *middle, "send: done, T", "stop ...", "stop: done, T"]
