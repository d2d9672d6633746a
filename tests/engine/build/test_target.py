"""Where no artifact can be written is said before anything is compiled."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.build.package import build_artifact
from engine.build.spec import BuildSpec
from engine.build.target import PACKAGE_BYTES, require_room
from engine.errors import ArtifactError


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtifactError, match=r"file: no artifact can be written there: File exists; choose"):
        build_artifact(BuildSpec(tmp_path / "model", tmp_path / "file" / "artifact", "tiny"))


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_000_000))
    with pytest.raises(ArtifactError, match=r"out: 2 MB are free, the artifact needs about 32; make room"):
        build_artifact(BuildSpec(tmp_path / "model", tmp_path / "out" / "artifact", "tiny"))
    assert not list((tmp_path / "out").iterdir())


def test_weights_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=500 * 10**6))
    require_room(tmp_path, 500 * 10**6 - PACKAGE_BYTES)
    with pytest.raises(ArtifactError, match=r"500 MB are free, the artifact needs about 570"):
        require_room(tmp_path, 538_078_120)
