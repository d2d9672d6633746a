"""The compiler check: what works, what links libstdc++ statically, what fails, what is absent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from engine.build.compilation import compile_package
from engine.build.compiler import check_compiler, compiler_told, require_compiler
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


class Once(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "c++: fatal error: Killed signal terminated program cc1plus",
            "Killed .* cc1plus; it had too little",
        ),
        ("In file included from x.cpp:\nx.cpp:3:9: error: no such thing\ncompilation terminated.", "no such"),
        ("", "without a word"),
    ],
)
def test_one_that_dies_while_it_compiles(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch's error is its whole command line and pages of trace."""
    script = f'case "$*" in *--version*) exec "$REAL" "$@";; esac\nprintf \'{words}\' >&2\nexit 1'
    path = pretend(monkeypatch, tmp_path, script)
    exported = torch.export.export(Once(), (torch.zeros(4),))
    with (
        torch._inductor.config.patch({"cpp.cxx": (str(path),)}),
        pytest.raises(ArtifactError, match=rf"compiler {re.escape(str(path))} failed: .*{said}") as raised,
        compiler_told(),
    ):
        compile_package(exported, tmp_path / "made.pt2")
    assert "--debug" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_no_compiler_said_stays_as_it_is() -> None:
    error = RuntimeError("of torch")
    with pytest.raises(RuntimeError) as raised, compiler_told():
        raise error
    assert raised.value is error
