"""A full disk, acted out by /dev/full, where every write fails as on one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from engine.build.compilation import compile_package
from engine.disk import full_folders, is_full, unwritten, writing


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file on a disk without room."""
    path = tmp_path / "made.pt2"
    path.symlink_to("/dev/full")
    return path


def said_of(error: OSError) -> tuple[int | None, str | None, str]:
    return error.errno, error.strerror, str(error.filename)


def test_a_write_that_fails_names_its_file(full: Path) -> None:
    with pytest.raises(OSError) as raised, writing(full):
        full.write_bytes(b"some")
    assert said_of(raised.value) == (errno.ENOSPC, "No space left on device", str(full))
    assert is_full(raised.value)
    assert unwritten(raised.value) == str(full)


def test_so_does_one_of_arrow(full: Path) -> None:
    with pytest.raises(OSError) as raised, writing(full):
        pq.write_table(pa.table({"x": range(1000)}), str(full))
    assert said_of(raised.value) == (errno.ENOSPC, "No space left on device", str(full))


def test_so_does_one_of_safetensors(tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised, writing(tmp_path / "away" / "weights"):
        save_file({"x": torch.zeros(4)}, tmp_path / "away" / "weights")
    assert raised.value.errno == errno.ENOENT
    error = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(OSError) as raised, writing(tmp_path):
        raise error
    assert said_of(raised.value) == (errno.ENOSPC, "No space left on device", str(tmp_path))


def test_so_does_one_of_a_compiled_package_where_torch_would_abort(full: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    exported = torch.export.export(Twice(), (torch.zeros(4),))
    with pytest.raises(OSError) as raised:
        compile_package(exported, full)
    assert said_of(raised.value) == (errno.ENOSPC, "No space left on device", str(full))


def test_what_is_no_error_of_the_system_stays_as_it_is(tmp_path: Path) -> None:
    for error in (SafetensorError("invalid header"), ValueError("no")):
        with pytest.raises(type(error)) as raised, writing(tmp_path):
            raise error
        assert raised.value is error
        assert not is_full(error)


def test_a_full_disk_is_seen_behind_another_error_and_in_the_words_of_a_compiler() -> None:
    outer = RuntimeError("not compiled")
    outer.__cause__ = OSError(errno.ENOSPC, "full", "from.so", None, "to.so")
    assert is_full(outer)
    assert unwritten(outer) == "to.so"  # what is written, not what is read
    compiler = RuntimeError("as: /tmp/x.o: fatal error: can't write: No space left on device")
    assert is_full(compiler)
    assert unwritten(compiler) is None
    assert is_full(RuntimeError("g++: File size limit exceeded signal terminated program cc1plus"))
    assert not is_full(OSError(errno.EACCES, os.strerror(errno.EACCES)))


def test_folders_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_folders([tmp_path, tmp_path / "away"]) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    assert full_folders([tmp_path, tmp_path / "away"]) == [tmp_path]
