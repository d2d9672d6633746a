"""Where no artifact can be written is said before anything is compiled, or else when the disk is full."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.build import package
from engine.build.package import build_artifact
from engine.build.spec import BuildSpec
from engine.build.target import PACKAGE_BYTES, full_disk_told, require_room
from engine.disk import writing
from engine.errors import ArtifactError
from tiny_models import TinyModel


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


def test_a_disk_that_fills_up_later(
    tiny_causal: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_on_a_full_disk(exported: object, path: Path) -> None:
        path.symlink_to("/dev/full")
        with writing(path):
            path.write_bytes(b"a package")

    monkeypatch.setattr(package, "compile_package", compile_on_a_full_disk)
    out = tmp_path / "artifact"
    shutil.copytree(tiny_causal.artifact, out)
    before = (out / "manifest.json").read_bytes()
    said = (
        rf"{out}: no artifact is written: the disk is full, at \S+/artifact/model.pt2; "
        rf"what was begun is removed and {out} stays as it was; make room and build again"
    )
    with pytest.raises(ArtifactError, match=said):
        build_artifact(BuildSpec(tiny_causal.checkpoint, out, "tiny"))
    assert (out / "manifest.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_linker_that_dies_without_a_word_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = RuntimeError("collect2: fatal error: ld terminated with signal 7 [Bus error]")
    with pytest.raises(RuntimeError, match="signal 7"), full_disk_told(tmp_path / "out", tmp_path):
        raise killed
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with (
        pytest.raises(ArtifactError, match=f"is full, at {tmp_path} or "),
        full_disk_told(tmp_path / "out", tmp_path / "away"),
    ):
        raise killed
