"""Loads native.so, the C++ part of an artifact: operator kernels and the runner class. One that searches has
beam.so too, with a kernel of its own.

A process has one copy: every artifact of one format carries the same interface, so the first one loaded
serves all of them. Any thread.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Protocol, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

import engine.ops.hopper.stack  # registers what packages of the hopper path call
import engine.ops.packed_attention  # registers the schema that the library's kernels attach to
import engine.ops.portable.kept_attention  # what packages of searches call on CUDA
import engine.ops.portable.product_norm  # noqa: F401 -- likewise
from engine.disk import is_full
from engine.errors import ArtifactError
from engine.ops import beam_attention  # likewise

LIBRARY = "native.so"
BEAM_LIBRARY = "beam.so"
_UNPACKED = re.compile(r"to destination file (\S+?/aotinductor_\w+)/")  # of torch's message when that fails
_loading = Lock()  # registering a class twice would abort the second artifact
_opening = Lock()  # torch's loader of packages crashed once when two threads were in it


class Runner(Protocol):
    """runner.cpp: a compiled package, opened for one thread at a time."""

    def constant_names(self) -> list[str]: ...
    def use_constants(self, constants: Mapping[str, Tensor]) -> None:
        """Pointers, not copies: keep the tensors alive as long as the runner."""

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """On the thread's current CUDA stream, without the interpreter lock."""


def load_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    """A file's tensors on `device`; on CUDA each starts at 16 bytes, as kernels load them."""
    loaded = load_file(path, device=str(device))
    if device.type != "cuda":
        return loaded
    return {name: x if x.data_ptr() % 16 == 0 else x.clone() for name, x in loaded.items()}


def load_native(path: Path) -> None:
    """Load the library unless this process has one; OSError or RuntimeError where it does not fit torch."""
    with _loading:
        if not _is_loaded():
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]


def load_beam_native(path: Path) -> None:
    """Load the kernels of a decode step unless this process has them; errors as `load_native`."""
    with _loading:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(beam_attention.NAME, "CPU"):
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]


def open_runner(package: Path, device_index: int) -> Runner:
    """A runner of its own over `package` (-1: CPU, or the current device); `load_native` comes first.

    ArtifactError where torch has no room to unpack it, which it does in the folder for temporary files.
    """
    try:
        with _opening:
            return cast(Runner, torch.classes.boundgen_runtime.Runner(str(package), device_index))
    except RuntimeError as error:
        begun = _UNPACKED.search(str(error))
        if begun is None and not is_full(error):
            raise
        if begun is not None:  # it would stay, more with every start of a worker
            shutil.rmtree(begun[1], ignore_errors=True)
        reason = f"cannot be unpacked in {os.environ.get('TMPDIR', '/tmp')}, as where a disk is full"
        mend = "make room there, or name another folder by the environment variable TMPDIR"
        raise ArtifactError(f"{package}: {reason}; {mend}") from error


def _is_loaded() -> bool:
    try:
        return torch.classes.boundgen_runtime.Runner is not None
    except RuntimeError:  # how torch says that no such class is registered
        return False
