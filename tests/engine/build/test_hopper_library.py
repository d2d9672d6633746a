"""Where a build takes the compiled kernels from."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build.hopper_library import compile_kernels
from engine.errors import ArtifactError
from engine.ops.hopper import compiler, library
from hopper_models import fake_library


def test_an_nvcc_that_fails_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n[ $1 = --version ] || { echo too old >&2; exit 1; }\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.delenv("BOUNDGEN_HOPPER_LIBRARY", raising=False)
    with pytest.raises(
        ArtifactError, match=r"(?s)hopper kernels: nvcc failed on .*too old.*--kernels portable"
    ):
        compile_kernels(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_library_compiled_elsewhere_is_taken_if_it_is_of_these_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    name = library.file_name(f"{compiler.sources_digest()}-00112233")
    elsewhere = fake_library(tmp_path).rename(tmp_path / name)
    monkeypatch.setenv("BOUNDGEN_HOPPER_LIBRARY", str(elsewhere))
    kernels, path = compile_kernels(tmp_path / "cache")
    assert path == elsewhere
    assert kernels.library is not None
    assert library.file_name(kernels.library) == name
    monkeypatch.setenv("BOUNDGEN_HOPPER_LIBRARY", str(fake_library(tmp_path)))
    with pytest.raises(ArtifactError, match=f"wanted a file hopper-{compiler.sources_digest()}-"):
        compile_kernels(tmp_path / "cache")
