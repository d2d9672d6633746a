"""The compiled kernels of the hopper path, for a build: given, or from a cache folder, or compiled there now.

A machine without nvcc is no error, its layers go the portable path; an nvcc that makes no good code is.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import ArtifactError
from engine.models.plan import HopperKernels
from engine.ops.hopper.compiler import (
    CompileError,
    NvccMissingError,
    build_library,
    find_nvcc,
    given_library,
)
from engine.ops.hopper.library import load


def compile_kernels(cache: Path) -> tuple[HopperKernels, Path | None]:
    """The kernels, loaded, and their file; about a minute on two cores unless `cache` has them.

    ArtifactError with the compiler's words where nvcc is there and fails.
    """
    try:
        library = given_library() or build_library(cache)[0]
    except NvccMissingError as missing:
        return HopperKernels(None, str(missing)), None
    except CompileError as failed:
        raise ArtifactError(
            f"hopper kernels: {str(failed)[-2000:]}; install the extra boundgen[hopper] and set NVCC to its "
            "nvcc, or build with --kernels portable"
        ) from failed
    return HopperKernels(load(library)), library


def finds_kernels() -> bool:
    """Whether there are kernels or an nvcc: compile_kernels gives kernels then, or says what is wrong."""
    try:
        given_library() or find_nvcc()
    except NvccMissingError:
        return False
    except CompileError:
        return True
    return True
