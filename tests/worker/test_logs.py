"""Lines that machines can read, and that a flood is told in one line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from worker.logs import Throttle, configure_logging
from worker.settings import LogSettings


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_ours_and_the_libraries_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    structlog.get_logger("worker.x").warning("told", topic="t", offset=3)
    logging.getLogger("aiokafka.y").error("failed: %s", "why")
    structlog.get_logger("worker.x").debug("kept back by the level")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], first["topic"], first["offset"], first["level"]) == ("told", "t", 3, "warning")
    assert (second["event"], second["logger"], second["level"]) == ("failed: why", "aiokafka.y", "error")


def test_errors_bring_their_trace_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("worker.x").exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="console", level="error"))
    structlog.get_logger("worker.x").error("told", topic="t")
    assert "told" in capsys.readouterr().err


def test_a_flood_is_told_once_an_interval_with_the_number_kept_back() -> None:
    now = 100.0
    throttle = Throttle(interval_s=1.0, clock=lambda: now)
    assert [throttle.allow("a") for _ in range(4)] == [0, None, None, None]
    assert throttle.allow("b") == 0
    now = 101.5
    assert throttle.allow("a") == 3
    assert throttle.allow("a") is None


def test_a_library_that_repeats_itself_is_heard_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    for number in range(50):
        logging.getLogger("aiokafka.client").error("Unable to connect to node %s", number)
    logging.getLogger("aiokafka.client").error("something else")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["event"] == "Unable to connect to node 0"
    assert second["event"] == "something else"
