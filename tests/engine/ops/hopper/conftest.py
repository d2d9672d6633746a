"""The compiled library (built once a session, or BOUNDGEN_HOPPER_LIBRARY), and inputs shared by the kernel
tests.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.ops.hopper import compiler
from engine.ops.hopper.library import load


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        return
    here = Path(__file__).parent
    for item in items:  # the hook sees those of every folder
        if item.get_closest_marker("gpu") and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no GPU of compute capability 9.0"))


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("BOUNDGEN_HOPPER_LIBRARY")
    if named:
        return Path(named)
    try:
        compiler.find_nvcc()
    except compiler.NvccMissingError as missing:
        pytest.skip(str(missing))
    return compiler.build_library(tmp_path_factory.mktemp("hopper"))[0]


@pytest.fixture(scope="session")
def library(library_path: Path) -> str:
    return load(library_path)


@pytest.fixture
def poison() -> Callable[[], None]:
    """Leaves NaN bit patterns in the memory that the next allocations get."""

    def fill() -> None:
        held = [
            torch.full((1 << n,), 0xFF, dtype=torch.uint8, device="cuda")
            for n in range(9, 27)
            for _ in range(2)
        ]
        torch.cuda.synchronize()
        del held

    return fill


@pytest.fixture
def relative_error() -> Callable[[Tensor, Tensor], float]:
    def error(have: Tensor, want: Tensor) -> float:
        have, want = have.double(), want.double()
        assert torch.isfinite(have).all()
        return float((have - want).norm() / want.norm())

    return error
