"""The compiler check: what works, what links libstdc++ statically, what fails, what is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build.compiler import check_compiler, require_compiler
from engine.build.native import build_native
from engine.errors import ArtifactError


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Put a compiler in Inductor's place; $REAL is the real one."""
    real = check_compiler().path
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr("engine.build.compiler.get_cpp_compiler", lambda: str(path))
    return path


def test_the_compiler_of_this_machine() -> None:
    check = require_compiler()
    assert check.ok
    assert Path(check.path).is_absolute()
    assert check.version
    assert check.how_to_mend == ""


def test_static_standard_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = pretend(monkeypatch, tmp_path, 'exec "$REAL" -static-libstdc++ "$@"')
    check = check_compiler()
    assert not check.ok
    assert check.path == str(path)
    assert "libstdc++" in check.how_to_mend
    assert "CXX=/usr/bin/g++" in check.how_to_mend
    with pytest.raises(ArtifactError, match=r"compiler .*c\+\+: .*libstdc\+\+ dynamically"):
        require_compiler()


def test_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(
        monkeypatch,
        tmp_path,
        'case "$1" in --version) exec "$REAL" --version;; esac; echo no such flag >&2; exit 1',
    )
    check = check_compiler()
    assert not check.ok
    assert "no such flag" in check.how_to_mend


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.build.compiler.get_cpp_compiler", lambda: "/nowhere/c++")
    check = check_compiler()
    assert not check.ok
    assert "apt-get install g++" in check.how_to_mend


def test_native_library_failing_to_build_quotes_the_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.cpp").write_text("this is not C++;\n")
    monkeypatch.setattr("engine.build.native.SOURCES", (tmp_path / "broken.cpp",))
    with pytest.raises(ArtifactError, match=r"broken\.cpp"):
        build_native(check_compiler(), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
