"""Where a build emulates: on its device, unless the model does not fit there as often as a step holds it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.build import BuildSpec
from engine.build.emulation_device import ROUNDED, STUDIED, WORK_BYTES, emulation_device
from engine.models.checkpoint import Checkpoint

NUMBERS = 1 << 28


def spec_of(tmp_path: Path, device: str) -> BuildSpec:
    spec = BuildSpec(tmp_path, tmp_path / "out", "tiny")
    object.__setattr__(spec, "device", device)  # a spec refuses one that is not there
    return spec


@pytest.fixture
def checkpoint() -> Checkpoint:
    weight: Any = torch.empty(NUMBERS, device="meta")
    return cast(Checkpoint, SimpleNamespace(weights={"a": weight}))


@pytest.mark.parametrize(
    ("spare", "copies", "expected"), [(0, STUDIED, "cuda"), (-1, STUDIED, "cpu"), (-1, ROUNDED, "cuda")]
)
def test_room_decides(
    spare: int, copies: int, expected: str, tmp_path: Path, checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    free = 4 * STUDIED * NUMBERS + WORK_BYTES + spare
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
    assert emulation_device(spec_of(tmp_path, "cuda"), checkpoint, copies).type == expected


def test_a_build_for_a_cpu_stays_there(tmp_path: Path, checkpoint: Checkpoint) -> None:
    assert emulation_device(spec_of(tmp_path, "cpu"), checkpoint, STUDIED).type == "cpu"
