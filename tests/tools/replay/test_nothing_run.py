"""A replay that ran or compared nothing has not shown that anything is the same: a script must see that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("selection", [("--id", "nobody"), ("--since", "1s"), ("--topic", "no.such")])
def test_nothing_is_selected(scene: Any, selection: tuple[str, str]):
    for more in ([], ["--deterministic"]):
        found = scene.replay(scene.config(), *selection, *more)
        assert found.status == 3, found.told
        assert "nothing was run: no request is selected" in found.told
        assert found.findings["requests"] == 0


def test_a_capture_without_requests(scene: Any, tmp_path: Path):
    first = tmp_path / "header.capture"
    content = scene.capture.read_bytes()
    for size in range(1, len(content)):  # the header alone: the first cut that is a capture
        first.write_bytes(content[:size])
        found = scene.replay(scene.config(), files=[first])
        if found.status != 2:
            break
    assert (found.status, found.findings["requests"]) == (3, 0)


def test_a_pipeline_that_is_not_there_is_said(scene: Any):
    config = scene.config({"name": "renamed"}, pipelines=[{"config": "relevance.yaml", "topic": "elsewhere"}])
    found = scene.replay(config, "--id", "good-1", "--id", "good-2")
    assert found.status == 3
    assert "nothing was run: no selected request is of a pipeline of the configuration" in found.told
    assert found.findings["skipped"] == {"its pipeline is not in the configuration": 2}


def test_replies_that_were_not_captured(scene: Any, tmp_path: Path):
    """Requests come first in a capture: the first cut whose one record is whole has no reply."""
    first, content = tmp_path / "requests.capture", scene.capture.read_bytes()
    for size in range(1, len(content)):
        first.write_bytes(content[:size])
        found = scene.replay(scene.config(), files=[first])
        if found.findings.get("requests"):
            break
    assert (found.status, found.findings["unanswered"]) == (3, 1)
    assert "nothing was compared" in found.told
    for more in ("--deterministic", "--explain=good-0"):  # asked something else
        assert scene.replay(scene.config(), more, files=[first]).status == 0
